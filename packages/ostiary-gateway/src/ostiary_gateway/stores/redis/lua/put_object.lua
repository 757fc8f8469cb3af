-- uses: state object
-- 6 kind, 7 name, 8 data, 9 the expected version or '', 10 maximum number
-- Returns the new version as text; nothing if the current one differs.
local kind, name, expected = ARGV[6], ARGV[7], tonumber(ARGV[9])
local version = object_version(kind, name)
if expected and expected ~= version then
  return reply(false)
end
if version == 0 and redis.call('HLEN', key('objects:' .. kind)) >= tonumber(ARGV[10]) then
  return reply('full')
end
note_time()
local new = text(next_version())
redis.call('HSET', key('objects:' .. kind), name, new .. ' ' .. text(now) .. ' ' .. ARGV[8])
redis.call('ZADD', key('object_names:' .. kind), 0, name)
redis.call('SADD', key('object_kinds'), kind)
return reply(new)
