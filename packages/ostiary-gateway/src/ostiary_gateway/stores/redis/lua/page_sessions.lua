-- uses: state session
-- 6 index, 7 another index that must contain them or '', 8 how many to scan, 9 kind or ''
-- 10, 11 the cursor after which to begin: when its session began, and the id; or '' and ''
-- Returns sessions, the newest first, those of the same moment by id; then the cursor of the last scanned one, if there
-- are more.
local index, count = key(ARGV[6]), tonumber(ARGV[8])
local first = 0
if ARGV[10] ~= '' then
  first = redis.call('ZCOUNT', index, '(' .. ARGV[10], '+inf')
  -- The session of the cursor may have ended: skip those of its moment that came before it.
  local passed
  repeat
    passed = 0
    local same = redis.call('ZREVRANGE', index, first, first + 99, 'WITHSCORES')
    while passed * 2 < #same and tonumber(same[passed * 2 + 2]) == tonumber(ARGV[10]) and same[passed * 2 + 1] >= ARGV[11] do
      passed = passed + 1
    end
    first = first + passed
  until passed < 100
end
local ids = redis.call('ZREVRANGE', index, first, first + count - 1, 'WITHSCORES')
local rows = {}
for place = 1, #ids, 2 do
  local id = ids[place]
  if ARGV[7] == '' or redis.call('ZSCORE', key(ARGV[7]), id) then
    local session = load_session(id)
    if is_alive(session) and (ARGV[9] == '' or session.kind == ARGV[9]) then
      rows[#rows + 1] = {ids[place + 1], session_row(session)}
    end
  end
end
if #ids < count * 2 then
  return reply({rows})
end
return reply({rows, ids[#ids], ids[#ids - 1]})
