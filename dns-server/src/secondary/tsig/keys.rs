//! Keys, and their file: BIND's `key` statements, as `tsig-keygen` writes them.
//!
//! ```text
//! key "secondary" {
//!     algorithm hmac-sha256;
//!     secret "c2VjcmV0IG9mIGF0IGxlYXN0IHNpeHRlZW4gb2N0ZXRz";
//! };
//! ```

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use strum::EnumString;

use crate::limits::transfers::MIN_SECRET;
use crate::store::name::Name;

/// A MAC algorithm for TSIG (RFC 8945 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString)]
#[expect(missing_docs, reason = "the names say it")]
#[strum(serialize_all = "kebab-case", ascii_case_insensitive)]
pub enum Algorithm {
    HmacSha256,
    HmacSha384,
    HmacSha512,
}

impl Algorithm {
    /// Returns the algorithm's name as a domain name in wire format.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::HmacSha256 => b"\x0bhmac-sha256\0",
            Self::HmacSha384 => b"\x0bhmac-sha384\0",
            Self::HmacSha512 => b"\x0bhmac-sha512\0",
        }
    }

    /// Returns the length of a MAC in bytes.
    pub fn length(self) -> usize {
        self.ring().digest_algorithm().output_len()
    }

    fn ring(self) -> hmac::Algorithm {
        match self {
            Self::HmacSha256 => hmac::HMAC_SHA256,
            Self::HmacSha384 => hmac::HMAC_SHA384,
            Self::HmacSha512 => hmac::HMAC_SHA512,
        }
    }
}

/// A TSIG key. Its secret is never displayed.
pub struct TsigKey {
    name: Name,
    algorithm: Algorithm,
    secret: hmac::Key,
}

impl TsigKey {
    /// Makes a key with this name, algorithm and secret.
    pub fn new(name: Name, algorithm: Algorithm, secret: &[u8]) -> Self {
        Self { name, algorithm, secret: hmac::Key::new(algorithm.ring(), secret) }
    }

    /// Returns the key's name, which signed messages state.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the MAC algorithm that the key is for.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(super) fn secret(&self) -> &hmac::Key {
        &self.secret
    }
}

impl fmt::Debug for TsigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TsigKey")
            .field("name", &self.name)
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

/// TSIG keys by name. Clones share the keys, also after [`replace_by`](Self::replace_by).
#[derive(Debug, Clone, Default)]
pub struct Keyring(Arc<ArcSwap<Vec<Arc<TsigKey>>>>);

impl Keyring {
    /// Returns the key with a name, which is in wire format and lowercased.
    pub fn find(&self, name: &[u8]) -> Option<Arc<TsigKey>> {
        self.0.load().iter().find(|key| key.name.as_wire() == name).cloned()
    }

    /// Reads the keys from a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or holds anything but keys. The message does not repeat
    /// secrets.
    pub fn load(file: &Path) -> Result<Self, String> {
        let text = multinet_pem::read_text(file).map_err(|error| format!("{}: {error}", file.display()))?;
        text.parse().map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Replaces the keys, in all clones, by those of another keyring.
    pub fn replace_by(&self, other: &Self) {
        self.0.store(other.0.load_full());
    }
}

impl FromIterator<TsigKey> for Keyring {
    fn from_iter<I: IntoIterator<Item = TsigKey>>(keys: I) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(keys.into_iter().map(Arc::new).collect())))
    }
}

impl FromStr for Keyring {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut tokens = Tokenizer { rest: text, line: 1 };
        let mut keys: Vec<TsigKey> = Vec::new();
        loop {
            let key = match tokens.next() {
                Ok(None) => break,
                Err(error) => Err(error),
                Ok(Some("key")) => tokens.key(),
                Ok(Some(_)) => {
                    Err("write key \"NAME\" { algorithm hmac-sha256; secret \"BASE64\"; };".to_owned())
                }
            };
            let key = key.map_err(|error| format!("line {}: {error}", tokens.line))?;
            if keys.iter().any(|known| known.name == key.name) {
                return Err(format!("line {}: key {} is defined twice", tokens.line, key.name));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err("contains no key".to_owned());
        }
        Ok(keys.into_iter().collect())
    }
}

/// Splits a key file into words, strings and punctuation, without comments.
struct Tokenizer<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Tokenizer<'a> {
    fn skip(&mut self, bytes: usize) -> &'a str {
        let (skipped, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.line += skipped.matches('\n').count();
        self.rest = rest;
        skipped
    }

    fn next(&mut self) -> Result<Option<&'a str>, String> {
        loop {
            let white = self.rest.len() - self.rest.trim_start().len();
            self.skip(white);
            if self.rest.starts_with('#') || self.rest.starts_with("//") {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").ok_or("a comment is not closed")?;
                self.skip(end + 2);
            } else {
                break;
            }
        }
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        if first == '"' {
            self.skip(1);
            let end = self.rest.find(['"', '\n']).filter(|&end| self.rest[end..].starts_with('"'));
            let end = end.ok_or("a string is not closed")?;
            let word = self.skip(end);
            self.skip(1);
            return Ok(Some(word));
        }
        let is_mark = |c: char| matches!(c, '{' | '}' | ';' | '"');
        let end = self.rest.find(|c: char| c.is_whitespace() || is_mark(c)).unwrap_or(self.rest.len());
        Ok(Some(self.skip(end.max(first.len_utf8()))))
    }

    fn expect(&mut self, mark: &str) -> Result<(), String> {
        if self.next()? == Some(mark) { Ok(()) } else { Err(format!("{mark:?} is missing")) }
    }

    /// Parses a key statement of which the word `key` was read already.
    fn key(&mut self) -> Result<TsigKey, String> {
        let name = self.next()?.ok_or("a key has no name")?;
        let name: Name = name.parse().map_err(|error| format!("key {name:?}: {error}"))?;
        self.expect("{")?;
        let (mut algorithm, mut secret) = (None, None);
        loop {
            match self.next()? {
                Some("}") => break,
                Some("algorithm") => algorithm = Some(read_algorithm(self.next()?.unwrap_or_default())?),
                Some("secret") => secret = Some(read_secret(self.next()?.unwrap_or_default())?),
                _ => {
                    return Err(format!(
                        "key {name} may have an algorithm and a secret, and needs \"}};\" at its end"
                    ));
                }
            }
            self.expect(";")?;
        }
        self.expect(";")?;
        let algorithm = algorithm.ok_or_else(|| format!("key {name} has no algorithm"))?;
        let secret = secret.ok_or_else(|| format!("key {name} has no secret"))?;
        Ok(TsigKey::new(name, algorithm, &secret))
    }
}

fn read_algorithm(text: &str) -> Result<Algorithm, String> {
    let problem = |_| format!("algorithm {text:?}: use hmac-sha256, hmac-sha384 or hmac-sha512");
    text.parse().map_err(problem)
}

fn read_secret(text: &str) -> Result<Vec<u8>, String> {
    let secret = STANDARD.decode(text).map_err(|_| "the secret is not base64".to_owned())?;
    if secret.len() < MIN_SECRET {
        return Err(format!("the secret has fewer than {MIN_SECRET} bytes; make one with tsig-keygen"));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "c2VjcmV0IG9mIGF0IGxlYXN0IHNpeHRlZW4gb2N0ZXRz";

    #[test]
    fn keys_are_parsed_in_the_forms_that_bind_accepts() {
        let text = format!(
            "# by tsig-keygen\nkey \"One.test\" {{\n\talgorithm hmac-sha256;\n\tsecret \"{SECRET}\";\n}};\n// \
             unquoted, in the other order\n/* and\nhere */ key two{{secret {SECRET};algorithm HMAC-SHA512;}};"
        );
        let keys: Keyring = text.parse().unwrap();
        let found = keys.find(b"\x03one\x04test\0").unwrap();
        assert_eq!(
            (found.name().to_string().as_str(), found.algorithm()),
            ("one.test.", Algorithm::HmacSha256)
        );
        assert_eq!(keys.find(b"\x03two\0").unwrap().algorithm(), Algorithm::HmacSha512);
        assert!(keys.find(b"\x05three\0").is_none());
        assert!(!format!("{keys:?}").contains(SECRET));
    }

    #[test]
    fn a_parse_error_names_the_line_and_the_mistake() {
        let key = |inside: &str| format!("\nkey k {{ {inside} }};");
        for (text, message) in [
            (String::new(), "contains no key"),
            ("options {};".to_owned(), "line 1: write key"),
            ("key a b".to_owned(), "line 1: \"{\" is missing"),
            ("key \"a b\" {".to_owned(), "may not stand"),
            ("key \"a".to_owned(), "line 1: a string is not closed"),
            ("\n/* key".to_owned(), "line 2: a comment is not closed"),
            (key(""), "line 2: key k. has no algorithm"),
            (key("algorithm hmac-sha256;"), "has no secret"),
            (key("algorithm hmac-md5;"), "\"hmac-md5\": use hmac-sha256"),
            (key("algorithm hmac-sha256"), "\";\" is missing"),
            (key("secret \"c2hvcnQ=\";"), "fewer than 16 bytes"),
            (key("secret \"%\";"), "is not base64"),
            (key("port 53;"), "may have an algorithm and a secret"),
            (format!("key k {{ algorithm hmac-sha256; secret {SECRET}; }}"), "\";\" is missing"),
            (format!("key k {{ algorithm hmac-sha256; secret {SECRET}; }};").repeat(2), "is defined twice"),
        ] {
            let error = text.parse::<Keyring>().unwrap_err();
            assert!(error.contains(message), "{text:?}: {error}");
            assert!(!error.contains(SECRET));
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "(key|[{};\"#/*\n ]|é|algorithm|secret|hmac-sha256|[a-zA-Z=]{1,30}){0,30}") {
            let _ = text.parse::<Keyring>();
        }
    }
}
