-- uses: state object
-- 6 kind, 7 name, 8 the expected version or ''
local kind, name, expected = ARGV[6], ARGV[7], tonumber(ARGV[8])
-- The first command must need no memory: then Redis accepts the others even if its memory is full.
redis.call('DEL', key('nothing'))
local version = object_version(kind, name)
note_time()
if version == 0 or (expected and expected ~= version) then
  return reply(0)
end
redis.call('HDEL', key('objects:' .. kind), name)
redis.call('ZREM', key('object_names:' .. kind), name)
if redis.call('HLEN', key('objects:' .. kind)) == 0 then
  redis.call('SREM', key('object_kinds'), kind)
end
return reply(1)
