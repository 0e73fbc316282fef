//! Requests that break the protocol are refused, and never make their reader panic.

#![expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]

use polymux_transport::wire::{HEADER_LENGTH, Opcode, Operation, Request, RequestForm};
use proptest::prelude::*;

const FORMS: [RequestForm; 2] = [RequestForm { long_set_xattr: false }, RequestForm { long_set_xattr: true }];

/// A request of a kind, with these bytes behind its header.
fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_LENGTH + body.len()).unwrap();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&opcode.to_ne_bytes());
    bytes.extend_from_slice(&7_u64.to_ne_bytes());
    bytes.extend_from_slice(&1_u64.to_ne_bytes());
    bytes.resize(HEADER_LENGTH, 0);
    bytes.extend_from_slice(body);
    bytes
}

/// The decoded request as text, so that no part of it stays unread.
fn read(bytes: &[u8], form: RequestForm) -> Option<String> {
    let request = Request::parse(bytes, form).ok()?;
    if let Operation::BatchForget { inodes } = request.operation {
        let count = inodes.count();
        assert!(count * 16 <= bytes.len());
    }
    if let Operation::Write { data, .. } = request.operation {
        assert!(data.len() < bytes.len());
    }
    Some(format!("{request:?}"))
}

fn opcode() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => prop::sample::select(Opcode::ALL).prop_map(Opcode::number),
        1 => any::<u32>(),
    ]
}

/// Mostly small numbers and names, as requests have them.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        3 => (0_u32..64).prop_map(|number| number.to_ne_bytes().to_vec()),
        1 => any::<u32>().prop_map(|number| number.to_ne_bytes().to_vec()),
        2 => "[a-z/]{0,9}".prop_map(|name| [name.as_bytes(), &[0]].concat()),
        1 => prop::collection::vec(any::<u8>(), 0..16),
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_request_contains_it_is_read_or_refused(opcode in opcode(), body in body()) {
        for form in FORMS {
            let _ = read(&request(opcode, &body), form);
        }
    }

    #[test]
    fn bytes_without_any_meaning_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for form in FORMS {
            let _ = read(&bytes, form);
        }
    }

    #[test]
    fn a_request_says_the_same_in_one_piece_and_in_three_places(opcode in opcode(), body in body()) {
        for form in FORMS {
            let bytes = request(opcode, &body);
            let Ok(whole) = Request::parse(&bytes, form) else { continue };
            // The area of the structure holds the longest of all.
            let found = (0..=body.len()).any(|split| {
                let mut structure = body[..split].to_vec();
                structure.resize(128, 0);
                let parts = Request::from_parts(&bytes[..HEADER_LENGTH], &structure, &body[split..], form);
                parts.is_ok_and(|parts| format!("{parts:?}") == format!("{whole:?}"))
            });
            prop_assert!(found);
        }
    }
}

#[test]
fn a_request_that_is_cut_off_anywhere_is_refused() {
    let names = [0_u64.to_ne_bytes().as_slice(), b"old\0new\0"].concat();
    for (kind, body) in [
        (Opcode::Rename, names),
        (Opcode::Lookup, b"name\0".to_vec()),
        (Opcode::SetAttr, vec![0; 88]),
        (Opcode::Write, [[0_u8; 16].as_slice(), &5_u32.to_ne_bytes(), &[0; 20], b"bytes"].concat()),
        (Opcode::BatchForget, [2_u32.to_ne_bytes().as_slice(), &[0; 4], &[0; 32]].concat()),
    ] {
        let whole = request(kind.number(), &body);
        assert!(read(&whole, FORMS[0]).is_some(), "{}", kind.name());
        for length in 0..whole.len() {
            // Without the last bytes it is shorter than it says; with a length that fits, something is missing.
            assert!(read(&whole[..length], FORMS[0]).is_none(), "{} of {length} bytes", kind.name());
            if length >= HEADER_LENGTH {
                let cut = request(kind.number(), &body[..length - HEADER_LENGTH]);
                assert!(read(&cut, FORMS[0]).is_none(), "{} cut to {length} bytes", kind.name());
            }
        }
    }
}

#[test]
fn a_time_with_too_many_nanoseconds_is_refused() {
    let mut body = vec![0; 88];
    body[..4].copy_from_slice(&(1_u32 << 4).to_ne_bytes());
    body[32..40].copy_from_slice(&i64::MIN.to_ne_bytes());
    assert!(read(&request(Opcode::SetAttr.number(), &body), FORMS[0]).unwrap().contains("-9223372036854775808"));
    body[56..60].copy_from_slice(&1_000_000_000_u32.to_ne_bytes());
    assert!(read(&request(Opcode::SetAttr.number(), &body), FORMS[0]).is_none());
}
