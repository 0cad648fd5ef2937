"""What Redis does in one step. A script runs alone, and with a write-ahead file it is replayed whole or not at all.

Keys share the hash tag of their prefix, so that they live on one node of a cluster. Numbers travel as decimal strings
with 17 digits, which is every bit of a double; Redis adds ledger amounts itself, so integers stay exact.
"""

from __future__ import annotations

from typing import Final

# Parts of an origin's arguments and of a field's name: a control character that no configured name can hold.
SEPARATOR: Final = "\x1f"

# KEYS: origins, origins by touch, learned, learned by touch, pushes, clock, days, then one ledger hash per day named.
# ARGV: origin, after, limit of keys, limit of pushes, limit of origins, days (number), then each day, then per batch:
#   seq, previous, number of amounts, each (index of its day, field, amount), number of learned keys,
#   each (field, number of elements, elements), JSON of the deltas.
APPEND: Final = """
local origin, after = ARGV[1], tonumber(ARGV[2])
local last = tonumber(redis.call('HGET', KEYS[1], origin) or '0')
if last < after then return last end
local clock = redis.call('INCR', KEYS[6])
local days = tonumber(ARGV[6])
local at = 7
for _ = 1, days do
  redis.call('SADD', KEYS[7], ARGV[at])
  at = at + 1
end

local function learn(field, new)
  local held = redis.call('HGET', KEYS[3], field)
  local sums = {}
  if held then
    for number in string.gmatch(held, '%S+') do sums[#sums + 1] = number end
  end
  for i, number in ipairs(new) do
    sums[i] = sums[i] and string.format('%.17g', tonumber(sums[i]) + tonumber(number)) or number
  end
  redis.call('HSET', KEYS[3], field, table.concat(sums, ' '))
  redis.call('ZADD', KEYS[4], clock, field)
end

while at <= #ARGV do
  local seq, previous = tonumber(ARGV[at]), ARGV[at + 1]
  local fresh = seq > last
  local amounts = tonumber(ARGV[at + 2])
  at = at + 3
  for _ = 1, amounts do
    if fresh then redis.call('HINCRBYFLOAT', KEYS[7 + tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2]) end
    at = at + 3
  end
  local learned = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, learned do
    local field, length, new = ARGV[at], tonumber(ARGV[at + 1]), {}
    for i = 1, length do new[i] = ARGV[at + 1 + i] end
    at = at + 2 + length
    if fresh then learn(field, new) end
  end
  if fresh then
    if learned > 0 then
      redis.call('XADD', KEYS[5], 'MAXLEN', ARGV[4], '*',
        'origin', origin, 'seq', seq, 'previous', previous, 'deltas', ARGV[at])
    end
    last = seq
    redis.call('HSET', KEYS[1], origin, last)
  end
  at = at + 1
end

redis.call('ZADD', KEYS[2], clock, origin)
for _, set in ipairs({{1, 2, 5}, {3, 4, 3}}) do
  local surplus = redis.call('ZCARD', KEYS[set[2]]) - tonumber(ARGV[set[3]])
  if surplus > 0 then
    local popped = redis.call('ZPOPMIN', KEYS[set[2]], surplus)
    for i = 1, #popped, 2 do redis.call('HDEL', KEYS[set[1]], popped[i]) end
  end
end
return last
"""

# KEYS: learned, origins, pushes. Returns the learned fields and the origins as JSON lists of names and values in turn,
# and the newest position, of one moment. One long string is read a hundred times faster than many short ones.
SNAPSHOT: Final = """
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
local position = #newest > 0 and newest[1][1] or '0-0'
return {cjson.encode(redis.call('HGETALL', KEYS[1])), cjson.encode(redis.call('HGETALL', KEYS[2])), position}
"""

# KEYS: pushes. ARGV: position. Returns the pushes after it, the newest position, and whether none was dropped between.
PULL: Final = """
local position = ARGV[1]
local pushes = redis.call('XRANGE', KEYS[1], position == '' and '-' or '(' .. position, '+')
local newest = #pushes > 0 and pushes[#pushes][1] or (position == '' and '0-0' or position)
local whole = 1
if position ~= '' and position ~= '0-0' then
  -- The push at the position, or one before it, is still there: nothing was dropped since.
  whole = #redis.call('XREVRANGE', KEYS[1], position, '-', 'COUNT', 1)
end
return {pushes, newest, whole}
"""

# KEYS: counter. ARGV: amount, limit, life in milliseconds. Returns what was granted and what is used.
LEASE: Final = """
local amount, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
local granted
if amount < 0 then granted = math.max(amount, -used)
else granted = math.min(amount, math.max(0, limit - used)) end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], '0', 'PX', ARGV[3])
end
redis.call('INCRBYFLOAT', KEYS[1], string.format('%.17g', granted))
return {string.format('%.17g', granted), string.format('%.17g', used + granted)}
"""
