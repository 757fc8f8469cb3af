-- Sends the requests of a file, one after the other, again and again. They are made beforehand; where one has a "\1",
-- ten digits come that were never there before: wrk -s load.lua URL -- FILE FIRST_NUMBER
local requests, position, number = {}, 0, 0

local function pieces_of(text)
  local pieces = {}
  for piece in (text .. "\1"):gmatch("([^\1]*)\1") do
    pieces[#pieces + 1] = piece
  end
  return #pieces == 1 and text or pieces
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  number = tonumber(args[2])
  while true do
    local length = file:read("*l")
    if not length then break end
    requests[#requests + 1] = pieces_of(file:read(tonumber(length)))
  end
  file:close()
end

function request()
  position = position % #requests + 1
  local made = requests[position]
  if type(made) == "string" then return made end
  number = number + 1
  local new = string.format("%010d", number)
  if #made == 2 then return made[1] .. new .. made[2] end
  return table.concat(made, new)
end
