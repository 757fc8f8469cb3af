-- uses: state
-- 6 number
local value = redis.call('HGET', key('log'), ARGV[6])
local entry = value and cjson.decode(value)
-- The entry stays: a gap in the numbers would mean a missed revocation.
if not entry or entry[2] == 'gap' or entry[7] ~= 0 then
  return reply(0)
end
entry[7] = 1
redis.call('HSET', key('log'), ARGV[6], cjson.encode(entry))
return reply(1)
