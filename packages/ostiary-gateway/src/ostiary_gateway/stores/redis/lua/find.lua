-- uses: state session
-- 6 '1' to be confirmed, 7 digest
confirm_if(ARGV[6])
local token, session = living(ARGV[7])
if token == nil then
  return reply(false)
end
return reply({token.kind, token.issued, token.expires, token.delegation, session_row(session)})
