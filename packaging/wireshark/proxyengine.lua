-- Shows what a capture of proxyengine says about a frame as fields, and which frames are the same one on its two legs: docs/capture.md.
--
-- The engine writes words `key=value` into each frame's comment (src/capture/words.rs). Read with
--     wireshark -X lua_script:proxyengine.lua capture.pcapng
-- or put into the folder that Help > About Wireshark > Folders names for personal Lua plugins.

local proxyengine = Proto("proxyengine", "proxyengine")

local words = {
    conn = ProtoField.uint64("proxyengine.conn", "Connection"),
    pkt = ProtoField.string("proxyengine.pkt", "Packet"),
    leg = ProtoField.string("proxyengine.leg", "Leg"),
    kind = ProtoField.string("proxyengine.kind", "Kind"),
    of = ProtoField.string("proxyengine.of", "Held since packets"),
    client = ProtoField.string("proxyengine.client", "Client"),
    listener = ProtoField.string("proxyengine.listener", "Listener"),
    rule = ProtoField.string("proxyengine.rule", "Rule"),
    server = ProtoField.string("proxyengine.server", "Server"),
    phase = ProtoField.string("proxyengine.phase", "Phase"),
    events = ProtoField.string("proxyengine.events", "Events"),
    actions = ProtoField.string("proxyengine.actions", "Actions"),
    dseq = ProtoField.string("proxyengine.dseq", "Added to SEQ of client, server"),
    dts = ProtoField.string("proxyengine.dts", "Added to TSval of client, server"),
    drop = ProtoField.string("proxyengine.drop", "Dropped because"),
    ["end"] = ProtoField.string("proxyengine.end", "Ended by"),
}
local record = ProtoField.string("proxyengine.record", "Session record")
local twin = ProtoField.framenum("proxyengine.twin", "The same packet")

local came = ProtoField.framenum("proxyengine.came", "Came in")

local fields = { record, twin, came }
for _, field in pairs(words) do
    table.insert(fields, field)
end
proxyengine.fields = fields

local comment = Field.new("frame.comment")

-- Frames by packet, filled as the file is read.
local frames_of = {}

function proxyengine.init()
    frames_of = {}
end

local function remember(packet, number)
    local frames = frames_of[packet] or {}
    for _, known in ipairs(frames) do
        if known == number then
            return frames
        end
    end
    table.insert(frames, number)
    frames_of[packet] = frames
    return frames
end

function proxyengine.dissector(_, pinfo, tree)
    local comments = { comment() }
    if #comments == 0 then
        return
    end
    local part = nil
    for _, found in ipairs(comments) do
        local text = tostring(found)
        local said = text:match("^record (.*)$")
        if said and part then
            part:add(record, said)
        elseif text:match("^conn=%d+ pkt=") then
            part = tree:add(proxyengine)
            for key, value in text:gmatch("([%a]+)=(%S+)") do
                local field = words[key]
                if key == "conn" then
                    part:add(field, UInt64.new(tonumber(value)))
                elseif field then
                    part:add(field, value)
                end
                if key == "of" then
                    for packet in value:gmatch("[^,]+") do
                        -- What came in is the first frame of its packet.
                        local frames = frames_of[packet]
                        if frames then
                            part:add(came, frames[1])
                        end
                    end
                end
                if key == "pkt" then
                    for _, other in ipairs(remember(value, pinfo.number)) do
                        if other ~= pinfo.number then
                            part:add(twin, other)
                        end
                    end
                end
            end
        end
    end
end

register_postdissector(proxyengine)
