-- uses: state log session change
-- 6 to 14 session, 15 sequence or '', then tokens
if has_diverged() then
  return {'diverged'}
end
correct_time()
local session = given_session(6)
session.sequence = tonumber(ARGV[15]) or last_before(session.created)
if covers(session, session.sequence) then
  return reply('revoked')
end
if is_taken(16, session.id) then
  return reply('taken')
end
put_session(session)
put_tokens(16, session.id)
note_time()
return reply('added')
