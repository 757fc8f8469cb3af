-- uses: state log
-- 6 and on: number, kind, value, at or '', by, recorded, undone
for index = 6, #ARGV, 7 do
  local number, kind, value, at, by, recorded, undone = unpack(ARGV, index, index + 6)
  at = at ~= '' and text(tonumber(at) + shift) or ''
  -- Readers know the last one by the id of the head already.
  local id = tonumber(number) == head and head_id or new_id()
  write_entry(tonumber(number), {id, kind, value, at, by, text(tonumber(recorded) + shift), tonumber(undone)})
end
return reply(1)
