-- uses: state
-- 6 cursor, 7 about how many
return reply(redis.call('ZSCAN', key('by_creation'), ARGV[6], 'COUNT', ARGV[7]))
