-- uses: state session
-- 6 index, 7 another index that must contain them or '', 8 first, 9 how many to scan, 10 kind or ''
-- Returns the number of scanned sessions, and the sessions, the newest first.
local ids = redis.call('ZREVRANGE', key(ARGV[6]), ARGV[8], tonumber(ARGV[8]) + tonumber(ARGV[9]) - 1)
local rows = {}
for _, id in ipairs(ids) do
  if ARGV[7] == '' or redis.call('ZSCORE', key(ARGV[7]), id) then
    local session = load_session(id)
    if is_alive(session) and (ARGV[10] == '' or session.kind == ARGV[10]) then
      rows[#rows + 1] = session_row(session)
    end
  end
end
return reply({#ids, rows})
