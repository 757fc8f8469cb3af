-- uses: state log session change
-- 6 session id, then tokens
if has_diverged() then
  return {'diverged'}
end
correct_time()
note_time()
local session = load_session(ARGV[6])
if not is_alive(session) then
  return reply('refused')
end
if is_taken(7, session.id) then
  return reply('taken')
end
put_tokens(7, session.id)
return reply('added')
