use std::io::Cursor;

use super::*;

/// Little-endian pcapng blocks, written by hand from the specification and not by the library.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len().next_multiple_of(4) + 12) as u32;
    let mut block = [kind.to_le_bytes(), length.to_le_bytes()].concat();
    block.extend_from_slice(body);
    block.resize(length as usize - 4, 0);
    block.extend(length.to_le_bytes());
    block
}

fn section() -> Vec<u8> {
    block(
        0x0a0d_0d0a,
        &[
            0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ],
    )
}

fn interface(link: u8, limit: u8, options: &[u8]) -> Vec<u8> {
    block(1, &[&[link, 0, 0, 0, limit, 0, 0, 0], options].concat())
}

fn enhanced(interface: u8, length: u8, frame: &[u8]) -> Vec<u8> {
    let header = [
        [interface, 0, 0, 0],
        [0xff; 4],
        [0xff; 4],
        [length, 0, 0, 0],
        [99, 0, 0, 0],
    ]
    .concat();
    block(6, &[&header, frame].concat())
}

fn read(file: Vec<u8>) -> Result<Vec<Vec<u8>>, CaptureError> {
    let mut reader = FrameReader::new(Cursor::new(file))?;
    let (mut frame, mut frames) = (Vec::new(), Vec::new());
    while reader.next_frame(&mut frame)? {
        frames.push(frame.clone());
    }
    Ok(frames)
}

#[test]
fn packet_blocks_of_all_three_kinds_are_read() {
    let obsolete = [&[0, 0, 0, 0], &[0; 8][..], &[3, 0, 0, 0], &[3, 0, 0, 0], &[4, 5, 6]].concat();
    let file = [
        section(),
        interface(1, 0, &[]),
        enhanced(0, 3, &[1, 2, 3]),
        block(2, &obsolete),
        block(3, &[&[5, 0, 0, 0][..], &[7, 8, 9, 10, 11]].concat()),
        block(0xbad, &[1, 2, 3, 4]),
    ];
    let frames = read(file.concat()).expect("well formed");
    assert_eq!(frames, [vec![1, 2, 3], vec![4, 5, 6], vec![7, 8, 9, 10, 11]]);
}

#[test]
fn simple_packet_is_as_long_as_its_interface_allows() {
    let packet = block(3, &[&[9, 0, 0, 0][..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat());
    let frames = read([section(), interface(1, 6, &[]), packet].concat()).expect("well formed");
    assert_eq!(frames, [[1, 2, 3, 4, 5, 6]]);
}

#[test]
fn big_endian_files_are_read() {
    let mut file = vec![0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0];
    file.extend([0xff; 8]);
    file.extend([0, 0, 0, 28]);
    file.extend([0, 0, 0, 1, 0, 0, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20]);
    file.extend([
        0, 0, 0, 6, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2,
    ]);
    file.extend([1, 2, 0, 0, 0, 0, 0, 36]);
    file.extend([
        0, 0, 0, 2, 0, 0, 0, 36, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2,
    ]);
    file.extend([3, 4, 0, 0, 0, 0, 0, 36]);
    assert_eq!(read(file).expect("well formed"), [[1, 2], [3, 4]]);
}

/// The library's own reader panics on both: an index beyond its table, and an overflowing product.
#[test]
fn absurd_time_stamp_resolutions_do_no_harm() {
    for resolution in [0x9e, 0x80] {
        let options = [9, 0, 1, 0, resolution, 0, 0, 0, 0, 0, 0, 0];
        let file = [section(), interface(1, 0, &options), enhanced(0, 2, &[1, 2])].concat();
        assert_eq!(read(file).expect("well formed"), [[1, 2]]);
    }
}

#[test]
fn malformed_files_are_errors() {
    let good = || [section(), interface(1, 0, &[])].concat();
    let cases = [
        ("empty", vec![]),
        ("too short for a magic number", vec![0x0a, 0x0d, 0x0d]),
        ("another kind of file", b"GIF89a, and then some more of that".to_vec()),
        ("section header that breaks off", section()[..20].to_vec()),
        (
            "packet before any interface",
            [section(), enhanced(0, 1, &[1])].concat(),
        ),
        ("unknown interface", [good(), enhanced(1, 1, &[1])].concat()),
        (
            "longer than its block",
            [good(), enhanced(0, 9, &[1, 2, 3, 4])].concat(),
        ),
        ("shorter than its header", [good(), block(6, &[0; 12])].concat()),
        ("simple packet without data", [good(), block(3, &[4, 0, 0, 0])].concat()),
        ("obsolete packet without header", [good(), block(2, &[0; 4])].concat()),
        (
            "block that breaks off",
            [good(), enhanced(0, 2, &[1, 2])[..20].to_vec()].concat(),
        ),
        (
            "block of length 8",
            [good(), vec![6, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]].concat(),
        ),
        (
            "block of 4 GB",
            [good(), vec![6, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff, 0, 0, 0, 0]].concat(),
        ),
    ];
    for (name, file) in cases {
        let result = read(file);
        assert!(result.is_err(), "{name}: {result:?}");
    }
}

#[test]
fn other_link_types_are_refused() {
    let raw_ip = [section(), interface(101, 0, &[]), enhanced(0, 1, &[1])].concat();
    assert!(matches!(read(raw_ip), Err(CaptureError::NotEthernet(DataLink::RAW))));
    let mut pcap = vec![
        0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 113, 0, 0, 0,
    ];
    assert!(matches!(
        read(pcap.clone()),
        Err(CaptureError::NotEthernet(DataLink::LINUX_SLL))
    ));
    pcap[20] = 1;
    assert_eq!(read(pcap).expect("no frames"), Vec::<Vec<u8>>::new());
}

#[test]
fn missing_file_is_named() {
    let error = FrameReader::open(Path::new("no/such.pcap")).err().expect("an error");
    assert!(error.to_string().starts_with("no/such.pcap: "), "{error}");
}

/// No bytes make it panic; seeded mutations of a good file reach deeper than noise.
#[test]
fn mutated_files_never_panic() {
    let good = [
        section(),
        interface(1, 0, &[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]),
        enhanced(0, 3, &[1, 2, 3]),
        block(3, &[5, 0, 0, 0, 7, 8, 9, 10, 11]),
        section(),
        interface(1, 4, &[]),
        enhanced(0, 2, &[1, 2]),
    ]
    .concat();
    // xorshift64 (Marsaglia 2003), so that every run tries the same files.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut readable = 0;
    for _ in 0..300 {
        let mut file = good.clone();
        for _ in 0..1 + random(3) {
            let at = random(file.len());
            file[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
        }
        file.truncate(good.len() - random(2) * random(40));
        readable += usize::from(read(file).is_ok());
    }
    assert!(
        (1..300).contains(&readable),
        "{readable} of 300 mutated files were readable"
    );
}

/// What the library reads of our files: interfaces, nanoseconds and directions, of more than one port.
#[test]
fn written_file_holds_interfaces_times_and_directions() {
    use pcap_file::pcapng::Block;

    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("two ports.pcapng");
    let mut writer = FrameWriter::create(&path).expect("created");
    let first = writer.add_interface("client").expect("written");
    let second = writer.add_interface("server").expect("written");
    let time = Duration::new(1_700_000_000, 123_456_789);
    writer
        .write(first, Direction::Inbound, time, &[1, 2, 3])
        .expect("written");
    writer
        .write(second, Direction::Outbound, time * 2, &[4; 70])
        .expect("written");
    drop(writer);

    let mut reader = PcapNgReader::new(File::open(&path).expect("opened")).expect("pcapng");
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("well formed") {
            let packet = packet.clone();
            packets.push((
                packet.interface_id,
                packet.timestamp,
                packet.options == [EnhancedPacketOption::Flags(packet.interface_id + 1)],
                packet.data.into_owned(),
            ));
        }
    }
    assert_eq!(
        packets,
        [(0, time, true, vec![1, 2, 3]), (1, time * 2, true, vec![4; 70])]
    );
    let names: Vec<_> = reader
        .interfaces()
        .iter()
        .map(|interface| interface.options[0].clone())
        .collect();
    let name = |name: &'static str| InterfaceDescriptionOption::IfName(Cow::Borrowed(name));
    assert_eq!(names, [name("client"), name("server")]);
}
