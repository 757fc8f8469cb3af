-- uses: state
-- 6 topic, 7 microseconds, 8 maximum number, then keys and messages
-- notes:TOPIC: key -> expires written data    note_order:TOPIC: keys by insertion    note_expiry:TOPIC: keys
local notes, order, expiry = key('notes:' .. ARGV[6]), key('note_order:' .. ARGV[6]), key('note_expiry:' .. ARGV[6])
local function remove(name)
  redis.call('HDEL', notes, name)
  redis.call('ZREM', order, name)
  redis.call('ZREM', expiry, name)
end
local count = (#ARGV - 8) / 2
-- Remove twice as many as are added, so that all expired ones are gone after a while.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', text(now), 'LIMIT', 0, 2 * count)) do
  remove(name)
end
local expires = now + tonumber(ARGV[7])
for index = 9, #ARGV, 2 do
  local name = ARGV[index]
  redis.call('HSET', notes, name, text(expires) .. ' ' .. text(now) .. ' ' .. ARGV[index + 1])
  redis.call('ZADD', order, redis.call('HINCRBY', KEYS[1], 'notes', 1), name)
  redis.call('ZADD', expiry, text(expires), name)
end
while redis.call('ZCARD', order) > tonumber(ARGV[8]) do
  remove(redis.call('ZRANGE', order, 0, 0)[1])
end
for _, name in ipairs({notes, order, expiry}) do
  keep(name, kept_for(expires))
end
return reply(1)
