-- uses: state log
-- 6 and on: number, kind, value, at or '', by, recorded, undone, owner
for index = 6, #ARGV, 8 do
  local number, kind, value, at, by, recorded, undone, owner = unpack(ARGV, index, index + 7)
  at = at ~= '' and text(tonumber(at) + shift) or ''
  -- Readers know the last one by the id of the head.
  local id = tonumber(number) == head and head_id or new_id()
  recorded = text(tonumber(recorded) + shift)
  write_entry(tonumber(number), {id, kind, value, at, by, recorded, tonumber(undone), owner})
end
return reply(1)
