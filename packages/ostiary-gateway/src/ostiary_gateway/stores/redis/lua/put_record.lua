-- uses: state
-- 6 digest, 7 expires, 8 data, 9 maximum number
-- record:DIGEST: expires data    records: digests by insertion    record_expiry: digests
local name, expires = key('record:' .. ARGV[6]), tonumber(ARGV[7]) + shift
local old = redis.call('GETRANGE', name, 0, 19)
if old ~= '' and tonumber(string.match(old, '%-?%d+')) > now then
  return reply(0)
end
local number = redis.call('HINCRBY', KEYS[1], 'records', 1)
redis.call('SET', name, text(expires) .. ' ' .. ARGV[8], 'PX', kept_for(expires))
redis.call('ZADD', key('records'), number, ARGV[6])
redis.call('ZADD', key('record_expiry'), text(expires), ARGV[6])
if redis.call('ZCARD', key('records')) > tonumber(ARGV[9]) then
  local oldest = redis.call('ZPOPMIN', key('records'))[1]
  redis.call('ZREM', key('record_expiry'), oldest)
  redis.call('DEL', key('record:' .. oldest))
end
keep(key('records'), kept_for(expires))
keep(key('record_expiry'), kept_for(expires))
return reply(1)
