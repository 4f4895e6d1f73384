//! Data of TXT records: character strings, each with a length byte (RFC 1035 §3.3).

/// Appends `key=value` as a character string. A pair that is longer than 255 bytes is left out.
pub(crate) fn push_pair(txt: &mut Vec<u8>, key: &str, value: &str) {
    if let Ok(length) = u8::try_from(key.len() + 1 + value.len()) {
        txt.push(length);
        txt.extend_from_slice(key.as_bytes());
        txt.push(b'=');
        txt.extend_from_slice(value.as_bytes());
    }
}

/// Returns the value of `key` in TXT data that consist of `key=value` strings.
pub(crate) fn value<'t>(txt: &'t [u8], key: &[u8]) -> Option<&'t [u8]> {
    split(txt).find_map(|string| string.strip_prefix(key)?.strip_prefix(b"="))
}

/// Returns the character strings of TXT data as text; bytes that are not UTF-8 are replaced.
pub(crate) fn strings(txt: &[u8]) -> Vec<String> {
    split(txt).map(|string| String::from_utf8_lossy(string).into_owned()).collect()
}

/// Returns the character strings of TXT data, up to one that is cut off.
fn split(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&length, tail) = rest.split_first()?;
        let (string, tail) = tail.split_at_checked(length.into())?;
        rest = tail;
        Some(string)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_character_strings_found_by_their_keys() {
        let mut txt = Vec::new();
        push_pair(&mut txt, "net", "rail0");
        push_pair(&mut txt, "node", &"x".repeat(251)); // 256 bytes with the key, one too many
        push_pair(&mut txt, "zone", &"y".repeat(250));
        assert_eq!(strings(&txt), ["net=rail0".to_owned(), format!("zone={}", "y".repeat(250))]);
        assert_eq!(value(&txt, b"net"), Some(&b"rail0"[..]));
        assert_eq!(value(&txt, b"zone"), Some(&[b'y'; 250][..]));
        assert_eq!((value(&txt, b"ne"), value(&txt, b"node"), value(b"\x09a=b", b"a")), (None, None, None));
    }
}
