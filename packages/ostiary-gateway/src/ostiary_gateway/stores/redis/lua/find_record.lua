-- uses: state
-- 6 '1' to be confirmed, 7 digest, 8 '1' to remove it
confirm_if(ARGV[6])
local name = key('record:' .. ARGV[7])
local value = redis.call('GET', name)
if not value then
  return reply(false)
end
local expires, start = string.match(value, '^(%-?%d+) ()')
if ARGV[8] == '1' then
  redis.call('DEL', name)
  redis.call('ZREM', key('records'), ARGV[7])
  redis.call('ZREM', key('record_expiry'), ARGV[7])
end
return reply(tonumber(expires) > now and string.sub(value, start))
