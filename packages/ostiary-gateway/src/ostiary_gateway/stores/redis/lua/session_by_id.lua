-- uses: state session
-- 6 '1' to be confirmed, 7 id
confirm_if(ARGV[6])
local session = load_session(ARGV[7])
return reply(is_alive(session) and session_row(session))
