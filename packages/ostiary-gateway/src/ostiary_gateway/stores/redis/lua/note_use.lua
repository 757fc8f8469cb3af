-- uses: state session
-- 6 and on: session id, time of use
for index = 6, #ARGV, 2 do
  local session, used = load_session(ARGV[index]), tonumber(ARGV[index + 1]) + shift
  if is_alive(session) and (session.used == '' or tonumber(session.used) < used) then
    redis.call('HSET', key('session:' .. session.id), 'used', text(used))
  end
end
return reply(1)
