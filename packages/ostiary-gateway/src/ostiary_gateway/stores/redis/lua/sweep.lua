-- uses: state log session change
-- 6 maximum number
-- Deletes some of what has expired. Returns the number of tokens, and whether there may be more.
local limit = tonumber(ARGV[6])
local swept = 0
note_time()
local digests = redis.call('ZRANGEBYSCORE', key('token_expiry'), '-inf', text(now), 'LIMIT', 0, limit)
for _, digest in ipairs(digests) do
  local token = load_token(digest)
  swept = swept + delete_token(digest, token and token.id or '')
end
local ids = redis.call('ZRANGEBYSCORE', key('by_expiry'), '-inf', text(now), 'LIMIT', 0, limit)
for _, id in ipairs(ids) do
  local session = load_session(id)
  if session then
    swept = swept + delete_session(session)
  else
    redis.call('ZREM', key('by_expiry'), id)
    redis.call('ZREM', key('by_creation'), id)
  end
end
local numbers = redis.call('ZRANGEBYSCORE', key('log_by_time'), '-inf', text(now - HOUR), 'LIMIT', 0, limit)
for _, member in ipairs(numbers) do
  local number = text(tonumber(member))
  local entry = redis.call('HGET', key('log'), number)
  if entry then
    local _, kind, value = unpack(cjson.decode(entry))
    redis.call('ZREM', key('marks:' .. kind .. ':' .. value), number)
  end
  redis.call('HDEL', key('log'), number)
  redis.call('ZREM', key('log_by_time'), member)
end
if #numbers > 0 then
  local last = tonumber(numbers[#numbers])
  redis.call('HSET', KEYS[1], 'forgotten', text(math.max(forgotten, last)), 'swept', text(last))
end
local records = redis.call('ZRANGEBYSCORE', key('record_expiry'), '-inf', text(now), 'LIMIT', 0, limit)
for _, digest in ipairs(records) do
  redis.call('DEL', key('record:' .. digest))
  redis.call('ZREM', key('record_expiry'), digest)
  redis.call('ZREM', key('records'), digest)
end
local more = #digests == limit or #ids == limit or #numbers == limit or #records == limit
return reply({swept, more and 1 or 0})
