-- uses: state log session change
-- 6 to 13 session, 14 spent digest, 15 at, 16 since or '', then tokens
if has_diverged() then
  return {'diverged'}
end
correct_time()
note_time()
local session = given_session(6)
local spent, at = ARGV[14], tonumber(ARGV[15]) + shift
local token, before = living(spent)
if token == nil or token.kind ~= 'renewal' or before.id ~= session.id then
  return reply('refused')
end
if covers(session.id, session.user, session.created, tonumber(ARGV[16]) or last_before(at)) then
  return reply('refused')
end
if is_taken(17, session.id) then
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
put_tokens(17, session.id)
return reply('renewed')
