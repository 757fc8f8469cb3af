-- uses: state
-- 6 topic, 7 key
redis.call('HDEL', key('notes:' .. ARGV[6]), ARGV[7])
redis.call('ZREM', key('note_order:' .. ARGV[6]), ARGV[7])
redis.call('ZREM', key('note_expiry:' .. ARGV[6]), ARGV[7])
return reply(1)
