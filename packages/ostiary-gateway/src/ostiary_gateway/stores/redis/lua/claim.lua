-- uses: state
-- 6 owner, 7 '1' to take it over
if ARGV[7] == '1' then
  redis.call('HSET', KEYS[1], 'version', VERSION, 'owner', ARGV[6])
elseif redis.call('HSETNX', KEYS[1], 'owner', ARGV[6]) == 1 then
  redis.call('HSET', KEYS[1], 'version', VERSION)
end
return reply(redis.call('HGET', KEYS[1], 'owner'))
