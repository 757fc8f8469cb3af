-- uses: state log session change
-- 6 to 14 session, 15 spent digest, 16 at, 17 since or '', then tokens
if has_diverged() then
  return {'diverged'}
end
correct_time()
note_time()
local session = given_session(6)
local spent, at = ARGV[15], tonumber(ARGV[16]) + shift
local token, before = living(spent)
if token == nil or token.kind ~= 'renewal' or before.id ~= session.id then
  return reply('refused')
end
if covers(session, tonumber(ARGV[17]) or last_before(at)) then
  return reply('refused')
end
if is_taken(18, session.id) then
  return reply('taken')
end
put_session(session)
if before.user ~= session.user then
  local owner = cjson.decode(session.user)[1]
  for _, digest in ipairs(redis.call('SMEMBERS', key('tokens_of:' .. session.id))) do
    local older = load_token(digest)
    if older and older.kind == 'access' then
      delete_token(digest, session.id)
      local hex = string.gsub(digest, '.', function(byte)
        return string.format('%02x', string.byte(byte))
      end)
      write_down(new_id(), 'token', hex, '', 'ostiary: the user has changed', owner)
    end
  end
  announce()
end
redis.call('SET', key('token:' .. spent),
  'spent ' .. text(at) .. ' ' .. text(token.expires) .. ' ' .. session.id, 'KEEPTTL')
put_tokens(18, session.id)
return reply('renewed')
