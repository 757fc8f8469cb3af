-- uses: state
-- 6 '1' to be confirmed, 7 kind, 8 name
confirm_if(ARGV[6])
return reply(redis.call('HGET', key('objects:' .. ARGV[7]), ARGV[8]))
