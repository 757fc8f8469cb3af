-- uses: state
-- 6 username, 7 kind, except that of a sign-in
return reply(redis.call('ZCOUNT', key('of_kind:' .. ARGV[7] .. ':' .. ARGV[6]), '(' .. text(now), '+inf'))
