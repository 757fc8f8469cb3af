-- uses: state
-- 6 the number up to which revocations count as deleted
redis.call('HSET', KEYS[1], 'forgotten', ARGV[6], 'swept', ARGV[6])
return reply(1)
