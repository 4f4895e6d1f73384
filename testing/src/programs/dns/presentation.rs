//! Conversion of names and types between wire and presentation format (RFC 1035, RFC 3597).

use std::fmt::Write as _;

/// Types with a mnemonic here. All others are written `TYPE123`.
const TYPES: [(&str, u16); 19] = [
    ("A", 1),
    ("NS", 2),
    ("CNAME", 5),
    ("SOA", 6),
    ("PTR", 12),
    ("HINFO", 13),
    ("MX", 15),
    ("TXT", 16),
    ("AAAA", 28),
    ("SRV", 33),
    ("NAPTR", 35),
    ("DS", 43),
    ("DNSKEY", 48),
    ("HTTPS", 65),
    ("IXFR", 251),
    ("AXFR", 252),
    ("MAILB", 253),
    ("MAILA", 254),
    ("ANY", 255),
];

/// Returns the number of a type.
pub fn type_number(text: &str) -> Option<u16> {
    match TYPES.iter().find(|(name, _)| *name == text) {
        Some((_, number)) => Some(*number),
        None => text.strip_prefix("TYPE")?.parse().ok(),
    }
}

/// Returns the mnemonic of a type, or its generic name.
pub(super) fn type_name(number: u16) -> String {
    match TYPES.iter().find(|(_, known)| *known == number) {
        Some((name, _)) => (*name).to_owned(),
        None => format!("TYPE{number}"),
    }
}

/// Returns a name in wire format. `\.` and `\\` are escapes of themselves, and `\DDD` of any byte.
/// The last dot may be omitted. The lengths of labels and name are not checked.
pub fn name_to_wire(text: &str) -> Option<Vec<u8>> {
    let mut wire = Vec::new();
    let mut label = Vec::new();
    let mut octets = text.bytes();
    while let Some(octet) = octets.next() {
        match octet {
            b'.' if label.is_empty() && text == "." => break,
            b'.' => push_label(&mut wire, &mut label)?,
            b'\\' => match octets.next()? {
                digit @ b'0'..=b'9' => {
                    let digits = [digit, octets.next()?, octets.next()?];
                    label.push(std::str::from_utf8(&digits).ok()?.parse().ok()?);
                }
                plain => label.push(plain),
            },
            plain => label.push(plain),
        }
    }
    if !label.is_empty() {
        push_label(&mut wire, &mut label)?;
    }
    wire.push(0);
    Some(wire)
}

fn push_label(wire: &mut Vec<u8>, label: &mut Vec<u8>) -> Option<()> {
    if label.is_empty() {
        return None;
    }
    wire.push(u8::try_from(label.len()).ok()?);
    wire.append(label);
    Some(())
}

/// Returns an uncompressed name in wire format as text, for messages.
pub(super) fn wire_to_name(wire: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = wire;
    while let Some((&length, tail)) = rest.split_first() {
        let (label, tail) = tail.split_at(usize::from(length).min(tail.len()));
        if length == 0 {
            break;
        }
        for &octet in label {
            match octet {
                b'.' | b'\\' => {
                    text.push('\\');
                    text.push(char::from(octet));
                }
                0x21..=0x7e => text.push(char::from(octet)),
                _ => _ = write!(text, "\\{octet:03}"), // a String takes all
            }
        }
        text.push('.');
        rest = tail;
    }
    if text.is_empty() { ".".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_convert_to_wire_format_and_back() {
        for text in [".", "a.", "_p._tcp.s.n.svc.z.", "a\\.b.c.", "x\\000\\010\\255.z."] {
            let wire = name_to_wire(text).unwrap();
            assert_eq!(wire_to_name(&wire), text);
        }
        assert_eq!(name_to_wire("a.b"), name_to_wire("a.b."));
        assert_eq!(name_to_wire("a..b"), None);
        assert_eq!(name_to_wire("a\\"), None);
    }

    #[test]
    fn record_types_convert_by_mnemonic_or_number() {
        assert_eq!(type_number("SRV"), Some(33));
        assert_eq!(type_number("TYPE65280"), Some(65_280));
        assert_eq!(type_number("srv?"), None);
        assert_eq!((type_name(28), type_name(1000)), ("AAAA".to_owned(), "TYPE1000".to_owned()));
    }
}
