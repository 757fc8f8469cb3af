-- uses: state
-- 6 up to which number revocations are no longer known
redis.call('HSET', KEYS[1], 'forgotten', ARGV[6], 'swept', ARGV[6])
return reply(1)
