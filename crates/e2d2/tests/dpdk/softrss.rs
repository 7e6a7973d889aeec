//! The Toeplitz hash against DPDK's own, which is inline in C: a small program prints what `rte_softrss` says.

use std::io::Write;
use std::process::{Command, Stdio};

use e2d2::rss::{DEFAULT_KEY, Toeplitz};

/// Reads lines of words (key and input, in hexadecimal digits) and prints the hash of each.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <rte_thash.h>
static size_t bytes(const char *text, uint8_t *to) {
    size_t n = 0;
    for (unsigned value; sscanf(text + 2 * n, "%2x", &value) == 1; n++)
        to[n] = (uint8_t)value;
    return n;
}
int main(void) {
    char key_text[128], input_text[128];
    while (scanf("%127s %127s", key_text, input_text) == 2) {
        uint8_t key[64] = {0}, input[64] = {0};
        uint32_t words[16];
        bytes(key_text, key);
        size_t count = bytes(input_text, input) / 4;
        for (size_t i = 0; i < count; i++)
            words[i] = (uint32_t)input[4 * i] << 24 | input[4 * i + 1] << 16 | input[4 * i + 2] << 8 | input[4 * i + 3];
        printf("%08x\n", rte_softrss(words, (uint32_t)count, key));
    }
    return 0;
}
"#;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What `rte_softrss` makes of each pair of key and input.
fn softrss(questions: &str) -> Vec<u32> {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (directory.path().join("softrss.c"), directory.path().join("softrss"));
    std::fs::write(&source, PROGRAM).expect("written");
    let flags = Command::new("pkg-config").args(["--cflags", "libdpdk"]).output();
    let flags = String::from_utf8(flags.expect("pkg-config runs").stdout).expect("text");
    let built = Command::new("cc")
        .args(flags.split_whitespace())
        .args(["-march=corei7", "-o"])
        .args([&program, &source])
        .status();
    assert!(built.expect("cc runs").success(), "the program is built");
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut input = child.stdin.take().expect("a pipe");
    let questions = questions.to_owned();
    let asking = std::thread::spawn(move || input.write_all(questions.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    asking.join().expect("asked").expect("it read everything");
    let answers = String::from_utf8(output.stdout).expect("text");
    answers
        .lines()
        .map(|line| u32::from_str_radix(line, 16).expect("a hash"))
        .collect()
}

#[test]
fn the_hash_is_what_dpdk_computes() {
    // Any numbers do: Microsoft's own vectors and the definition are tested beside the hash itself.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as u8
    };
    let mut keys = vec![DEFAULT_KEY.to_vec()];
    keys.extend((0..20).map(|n| {
        (0..if n % 2 == 0 { 40 } else { 52 })
            .map(|_| random())
            .collect::<Vec<u8>>()
    }));
    let (mut questions, mut expected) = (String::new(), Vec::new());
    for key in &keys {
        let toeplitz = Toeplitz::new(key);
        for _ in 0..100 {
            let (src, dst): ([u8; 16], [u8; 16]) =
                (std::array::from_fn(|_| random()), std::array::from_fn(|_| random()));
            let (src4, dst4) = ([src[0], src[1], src[2], src[3]], [dst[0], dst[1], dst[2], dst[3]]);
            let ports: [u8; 4] = std::array::from_fn(|_| random());
            let (sport, dport) = (
                u16::from_be_bytes([ports[0], ports[1]]),
                u16::from_be_bytes([ports[2], ports[3]]),
            );
            let mut ask = |input: &[u8], hash| {
                questions += &format!("{} {}\n", hex(key), hex(input));
                expected.push(hash);
            };
            ask(
                &[&src4[..], &dst4, &ports].concat(),
                toeplitz.tcp4(src4, dst4, sport, dport),
            );
            ask(
                &[&src[..], &dst, &ports].concat(),
                toeplitz.tcp6(src, dst, sport, dport),
            );
        }
    }
    assert_eq!(softrss(&questions), expected);
}
