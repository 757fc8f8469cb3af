-- Ends what a revocation covers: immediately if it is little, in portions if it is much.
local PORTION = 100

local function end_token(digest)
  local token, session = living(digest)
  -- A used one stays, so that its reuse is detected.
  if token == nil or token.kind == 'spent' then
    return 0
  end
  delete_token(digest, session.id)
  return 1
end

local function end_session(id)
  local session = load_session(id)
  if session == nil then
    return 0
  end
  local ended = is_alive(session) and 1 or 0
  delete_session(session)
  return ended
end

-- Deletes some of the sessions that `entry` ends. Returns how many were active, and the next cursor, '0' at the end.
-- The scan finds every session that exists during all of it.
local function end_portion(entry, number, cursor)
  local _, kind, value = unpack(entry)
  local index = key(kind == 'before' and 'by_creation' or kind .. ':' .. value)
  local scan = redis.call('ZSCAN', index, cursor, 'COUNT', PORTION)
  local ended = 0
  for position = 1, #scan[2], 2 do
    local session = load_session(scan[2][position])
    if session == nil then
      redis.call('ZREM', index, scan[2][position])
    elseif ends(entry, number, session) then
      if session.expires > now then
        ended = ended + 1
      end
      delete_session(session)
    end
  end
  return ended, scan[1]
end

-- Records progress, or with cursor '0' that the revocation is finished.
local function note_progress(number, entry, cursor)
  if cursor == '0' then
    redis.call('HDEL', key('unfinished'), number)
    redis.call('HDEL', key('progress'), number)
  else
    redis.call('HSET', key('unfinished'), number, entry)
    redis.call('HSET', key('progress'), number, text(now))
  end
  unfinished = redis.call('HLEN', key('unfinished'))
  redis.call('HSET', KEYS[1], 'unfinished', unfinished)
end

-- Returns how many ended, and the next cursor.
local function revoke(id, kind, value, at, by, owner)
  -- The first command must need no memory: then Redis accepts the others even if its memory is full.
  redis.call('DEL', key('nothing'))
  local ended, cursor = 0, '0'
  if kind == 'token' then
    ended = end_token((string.gsub(value, '%x%x', function(hex)
      return string.char(tonumber(hex, 16))
    end)))
  elseif kind == 'session' then
    ended = end_session(value)
  end
  local entry = write_down(id, kind, value, at, by, owner)
  if kind == 'user' or kind == 'group' or kind == 'before' then
    ended, cursor = end_portion(cjson.decode(entry), head, '0')
    if cursor ~= '0' then
      note_progress(text(head), entry, cursor)
    end
  end
  return ended, cursor
end
