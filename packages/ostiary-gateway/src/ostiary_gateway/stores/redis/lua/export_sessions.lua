-- uses: state session
-- 6 and on: ids
-- Returns the active ones, each with its active tokens.
local rows = {}
for index = 6, #ARGV do
  local session = load_session(ARGV[index])
  if is_alive(session) then
    local tokens = {}
    for _, digest in ipairs(redis.call('SMEMBERS', key('tokens_of:' .. session.id))) do
      local token = load_token(digest)
      if token and token.expires > now then
        tokens[#tokens + 1] = {digest, token.kind, token.issued, token.expires, token.delegation}
      end
    end
    rows[#rows + 1] = {session_row(session), tokens}
  end
end
return reply(rows)
