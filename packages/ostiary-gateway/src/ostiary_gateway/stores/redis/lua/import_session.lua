-- uses: state log session change
-- 6 to 14 session, 15 sequence or '', then tokens
-- Stores or replaces the session, with exactly these tokens.
correct_time()
local session = given_session(6)
session.sequence = tonumber(ARGV[15]) or head
for index = 16, #ARGV, 5 do
  local token = load_token(ARGV[index])
  if token and token.id ~= session.id and redis.call('EXISTS', key('session:' .. token.id)) == 1 then
    return reply('taken')
  end
end
local old = load_session(session.id)
if old then
  delete_session(old)
end
put_session(session)
put_tokens(16, session.id)
note_time()
return reply('imported')
