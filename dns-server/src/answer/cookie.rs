//! DNS cookies (RFC 7873), with the interoperable server cookies of RFC 9018. A client that returns
//! the server cookie that was sent to its address can receive packets there, so its address is not
//! forged.
//!
//! ```text
//!  client cookie   version  reserved  timestamp  SipHash-2-4(fields before, address; secret)
//!     8 bytes        1         3         4                          8
//! ```
//!
//! The server keeps no state per client: the secret is enough to make and check every cookie.
//! Replicas behind one address need the same secret, from a file. Without a file, each run
//! generates its own. Callers pass the time, in seconds since 1970; it may wrap around.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use arc_swap::ArcSwap;
use siphasher::sip::SipHasher24;

use crate::limits::cookies::{AHEAD, LIFETIME, RENEWAL};

/// Length of a client cookie in bytes (RFC 7873 §4).
const CLIENT: usize = 8;

/// Length in bytes of the server cookies that this server makes (RFC 9018 §4).
const SERVER: usize = 16;

/// Lengths that a server cookie may have, whichever server made it (RFC 7873 §4).
const ANY_SERVER: std::ops::RangeInclusive<usize> = 8..=32;

/// The only version of server cookies (RFC 9018 §4.1).
const VERSION: u8 = 1;

/// The COOKIE option of a query and, after [`CookieSigner::check_and_sign`], of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    /// Client cookie: chosen by the client, and repeated in the reply.
    pub client: [u8; CLIENT],
    /// Server cookie. `None` if it is absent or has another length than this server's cookies.
    pub server: Option<[u8; SERVER]>,
    /// `true` if the query has a server cookie of any length, valid or not.
    pub is_returned: bool,
}

impl Cookie {
    /// Parses the option's data. Returns `None` if the length is invalid, which is a format error
    /// (RFC 7873 §5.2.2).
    pub fn read(data: &[u8]) -> Option<Self> {
        let (client, server) = data.split_first_chunk()?;
        let is_returned = !server.is_empty();
        if is_returned && !ANY_SERVER.contains(&server.len()) {
            return None;
        }
        Some(Self { client: *client, server: server.try_into().ok(), is_returned })
    }

    /// Returns the length of the option in a reply, with its code and length fields. It is 0 before
    /// the cookie is signed.
    pub fn reply_len(&self) -> usize {
        self.server.map_or(0, |_| 4 + CLIENT + SERVER)
    }

    /// Appends the COOKIE option to a reply's OPT record, once the cookie is signed.
    pub fn push(&self, out: &mut Vec<u8>) {
        if let Some(server) = self.server {
            out.extend_from_slice(&[0, 10, 0, (CLIENT + SERVER) as u8]);
            out.extend_from_slice(&self.client);
            out.extend_from_slice(&server);
        }
    }
}

/// Result of checking a query's cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CookieStatus {
    /// The server cookie is valid: the sender has queried from its address before.
    Valid,
    /// The query has a client cookie, but no server cookie.
    ClientOnly,
    /// The server cookie is not this server's, has expired, or belongs to another address.
    Invalid,
}

/// Whether a reply repeats a valid server cookie or replaces it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Validity {
    /// The server cookie is young, and sent back unchanged.
    Fresh,
    /// The cookie is replaced by a new one: it is old, signed with the other secret, or has
    /// reserved bytes set by a later version.
    Renewable,
}

/// Makes and checks server cookies. Clones share their secrets, also after a
/// [`reload`](Self::reload).
#[derive(Clone)]
pub struct CookieSigner(Arc<ArcSwap<CookieSecrets>>);

struct CookieSecrets {
    signing: SipHasher24,
    /// Secret that is being rolled in or out (RFC 9018 §5). It checks cookies, but does not sign.
    other: Option<SipHasher24>,
}

impl fmt::Debug for CookieSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets must not appear in a log.
        f.debug_struct("CookieSigner").finish_non_exhaustive()
    }
}

impl CookieSigner {
    /// Makes a signer that signs with `signing`, and accepts cookies signed with either secret.
    pub fn new(signing: [u8; 16], other: Option<[u8; 16]>) -> Self {
        let hasher = |secret: [u8; 16]| SipHasher24::new_with_key(&secret);
        let secrets = CookieSecrets { signing: hasher(signing), other: other.map(hasher) };
        Self(Arc::new(ArcSwap::from_pointee(secrets)))
    }

    /// Makes a signer with a random secret.
    ///
    /// # Errors
    ///
    /// Fails if the system has no random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret)?;
        Ok(Self::new(secret, None))
    }

    /// Reads a file with one or two secrets, each a line of 32 hexadecimal digits. The first one
    /// signs.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read or has another content.
    pub fn load(file: &Path) -> Result<Self> {
        let flag = || format!("--cookie-secret-file {}", file.display());
        let text = multinet_pem::read_text(file).map_err(|problem| anyhow!("{}: {problem}", flag()))?;
        // The message does not repeat the content, which may be a part of a secret.
        signer(&text).ok_or_else(|| {
            anyhow!(
                "{}: write one or two lines of 32 hexadecimal digits each, as `openssl rand -hex 16` makes them",
                flag()
            )
        })
    }

    /// Reads the file again and replaces the secrets.
    ///
    /// # Errors
    ///
    /// Fails like [`load`](Self::load); the secrets then stay unchanged.
    pub fn reload(&self, file: &Path) -> Result<()> {
        self.0.store(Self::load(file)?.0.load_full());
        Ok(())
    }

    /// Checks the cookie of a query, and stores the server cookie for the reply in it. A young
    /// cookie is repeated, so that most queries cost one hash; otherwise a new one is signed.
    pub fn check_and_sign(&self, cookie: &mut Cookie, peer: IpAddr, now: u32) -> CookieStatus {
        let peer = peer.to_canonical();
        let secrets = self.0.load();
        let found = cookie.server.and_then(|server| secrets.check(&cookie.client, &server, peer, now));
        if found != Some(Validity::Fresh) {
            cookie.server = Some(secrets.sign(&cookie.client, peer, now));
        }
        match found {
            Some(_) => CookieStatus::Valid,
            None if cookie.is_returned => CookieStatus::Invalid,
            None => CookieStatus::ClientOnly,
        }
    }
}

impl CookieSecrets {
    /// Checks a client's server cookie. Returns `None` if it is forged, expired or of another
    /// address.
    fn check(
        &self,
        client: &[u8; CLIENT],
        server: &[u8; SERVER],
        peer: IpAddr,
        now: u32,
    ) -> Option<Validity> {
        let &[version, reserved @ .., t0, t1, t2, t3, _, _, _, _, _, _, _, _] = server;
        // Times wrap around (RFC 1982), so compare their difference.
        let age = now.wrapping_sub(u32::from_be_bytes([t0, t1, t2, t3])) as i32;
        if version != VERSION || !(-AHEAD..=LIFETIME).contains(&age) {
            return None;
        }
        let (stem, hash) = server.split_at(SERVER - 8);
        let given = u64::from_le_bytes(hash.try_into().ok()?);
        // Comparing two registers takes constant time, so the timing reveals neither hash.
        let fits = |secret: &SipHasher24| digest(secret, client, stem, peer) ^ given == 0;
        if fits(&self.signing) {
            let is_young = age <= RENEWAL && reserved == [0; 3];
            return Some(if is_young { Validity::Fresh } else { Validity::Renewable });
        }
        self.other.as_ref().is_some_and(fits).then_some(Validity::Renewable)
    }

    fn sign(&self, client: &[u8; CLIENT], peer: IpAddr, now: u32) -> [u8; SERVER] {
        let mut server = [VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        server[4..8].copy_from_slice(&now.to_be_bytes());
        let hash = digest(&self.signing, client, &server[..8], peer);
        server[8..].copy_from_slice(&hash.to_le_bytes());
        server
    }
}

/// Returns the hash of a client cookie, the first half of a server cookie, and an address (RFC 9018
/// §4.4).
fn digest(secret: &SipHasher24, client: &[u8; CLIENT], stem: &[u8], peer: IpAddr) -> u64 {
    let mut input = [0; CLIENT + 8 + 16];
    input[..CLIENT].copy_from_slice(client);
    input[CLIENT..CLIENT + 8].copy_from_slice(stem);
    let rest = &mut input[CLIENT + 8..];
    let length = match peer {
        IpAddr::V4(address) => {
            rest[..4].copy_from_slice(&address.octets());
            CLIENT + 8 + 4
        }
        IpAddr::V6(address) => {
            rest.copy_from_slice(&address.octets());
            CLIENT + 8 + 16
        }
    };
    secret.hash(&input[..length])
}

/// Parses one or two secrets, each a line of 32 hexadecimal digits. Ignores empty lines.
fn signer(text: &str) -> Option<CookieSigner> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(secret);
    let signing = lines.next()??;
    let other = match lines.next() {
        None => None,
        Some(other) => Some(other?),
    };
    lines.next().is_none().then(|| CookieSigner::new(signing, other))
}

fn secret(line: &str) -> Option<[u8; 16]> {
    if line.len() != 32 || !line.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    Some(u128::from_str_radix(line, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        let bytes: Vec<u8> =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
        bytes.try_into().unwrap()
    }

    fn cookie(text: &str) -> Cookie {
        match text.len() {
            16 => Cookie::read(&hex::<8>(text)),
            _ => Cookie::read(&hex::<24>(text)),
        }
        .unwrap()
    }

    /// Returns the option's data in the reply.
    fn reply(cookie: &Cookie) -> Vec<u8> {
        let mut out = Vec::new();
        cookie.push(&mut out);
        assert_eq!(out.len(), cookie.reply_len());
        out.split_off(4)
    }

    /// Test vectors of RFC 9018, appendix A.
    #[test]
    fn cookies_match_the_test_vectors_of_rfc_9018() {
        let secret = hex("e5e973e5a6b2a43f48e7dc849e37bfcf");
        let (old, new) = (hex("dd3bdf9344b678b185a6f5cb60fca715"), hex("445536bcd2513298075a5d379663c962"));
        for (case, signer, peer, now, sent, status, answered) in [
            (
                "A.1",
                CookieSigner::new(secret, None),
                "198.51.100.100",
                1_559_731_985,
                "2464c4abcf10c957",
                CookieStatus::ClientOnly,
                "2464c4abcf10c957010000005cf79f111f8130c3eee29480",
            ),
            (
                "A.2",
                CookieSigner::new(secret, None),
                "198.51.100.100",
                1_559_734_385,
                "2464c4abcf10c957010000005cf79f111f8130c3eee29480",
                CookieStatus::Valid,
                "2464c4abcf10c957010000005cf7a871d4a564a1442aca77",
            ),
            (
                "A.3",
                CookieSigner::new(secret, None),
                "203.0.113.203",
                1_559_734_700,
                "fc93fc62807ddb8601abcdef5cf78f71a314227b6679ebf5",
                CookieStatus::Invalid,
                "fc93fc62807ddb86010000005cf7a9acf73a7810aca2381e",
            ),
            (
                "A.4",
                CookieSigner::new(new, Some(old)),
                "2001:db8:220:1:59de:d0f4:8769:82b8",
                1_559_741_961,
                "22681ab97d52c298010000005cf7c57926556bd0934c72f8",
                CookieStatus::Valid,
                "22681ab97d52c298010000005cf7c609a6bb79d16625507a",
            ),
        ] {
            let mut cookie = cookie(sent);
            let found = signer.check_and_sign(&mut cookie, peer.parse().unwrap(), now);
            assert_eq!(found, status, "{case}");
            assert_eq!(reply(&cookie), hex::<24>(answered), "{case}");
        }
    }

    const SENT: &str = "2464c4abcf10c957010000005cf79f111f8130c3eee29480";
    const MADE: u32 = 1_559_731_985;
    const PEER: &str = "198.51.100.100";

    fn signer() -> CookieSigner {
        CookieSigner::new(hex("e5e973e5a6b2a43f48e7dc849e37bfcf"), None)
    }

    #[test]
    fn a_cookie_is_valid_for_an_hour_and_repeated_for_half_of_it() {
        for (now, status, is_new) in [
            (MADE - 301, CookieStatus::Invalid, true),
            (MADE - 300, CookieStatus::Valid, false),
            (MADE, CookieStatus::Valid, false),
            (MADE + 1800, CookieStatus::Valid, false),
            (MADE + 1801, CookieStatus::Valid, true),
            (MADE + 3600, CookieStatus::Valid, true),
            (MADE + 3601, CookieStatus::Invalid, true),
            (MADE.wrapping_add(1 << 31), CookieStatus::Invalid, true),
        ] {
            let mut cookie = cookie(SENT);
            assert_eq!(signer().check_and_sign(&mut cookie, PEER.parse().unwrap(), now), status, "{now}");
            assert_eq!(reply(&cookie) != hex::<24>(SENT), is_new, "{now}");
        }
    }

    #[test]
    fn reserved_bytes_are_hashed_and_cleared_in_the_reply() {
        let mut cookie = cookie("fc93fc62807ddb8601abcdef5cf78f71a314227b6679ebf5");
        let status = signer().check_and_sign(&mut cookie, "203.0.113.203".parse().unwrap(), 1_559_727_985);
        assert_eq!(status, CookieStatus::Valid);
        assert_eq!(cookie.server.unwrap()[..4], [1, 0, 0, 0]);
    }

    #[test]
    fn a_cookie_stays_valid_when_the_time_wraps_around() {
        let mut cookie = cookie("2464c4abcf10c957");
        let peer = PEER.parse().unwrap();
        assert_eq!(signer().check_and_sign(&mut cookie, peer, u32::MAX - 5), CookieStatus::ClientOnly);
        cookie.is_returned = true;
        assert_eq!(signer().check_and_sign(&mut cookie, peer, 5), CookieStatus::Valid);
    }

    #[test]
    fn a_cookie_with_any_changed_bit_or_address_is_invalid() {
        let good = hex::<24>(SENT);
        let stamp = |bytes: &[u8], signer: CookieSigner, peer: &str| {
            signer.check_and_sign(&mut Cookie::read(bytes).unwrap(), peer.parse().unwrap(), MADE)
        };
        assert_eq!(stamp(&good, signer(), PEER), CookieStatus::Valid);
        assert_eq!(stamp(&good, signer(), "::ffff:198.51.100.100"), CookieStatus::Valid);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good;
                bad[at] ^= 1 << bit;
                assert_eq!(stamp(&bad, signer(), PEER), CookieStatus::Invalid, "byte {at} bit {bit}");
            }
        }
        assert_eq!(stamp(&good, signer(), "198.51.100.101"), CookieStatus::Invalid);
        assert_eq!(stamp(&good, CookieSigner::random().unwrap(), PEER), CookieStatus::Invalid);
    }

    /// The lengths are those of RFC 7873 §4.
    #[test]
    fn a_cookie_of_an_invalid_length_is_a_format_error() {
        for length in 0..=64 {
            let read = Cookie::read(&vec![7; length]);
            assert_eq!(read.is_some(), length == 8 || (16..=40).contains(&length), "{length}");
            assert!(read.is_none_or(|cookie| cookie.is_returned == (length > 8)));
            assert!(read.is_none_or(|cookie| cookie.server.is_some() == (length == 24)));
        }
    }

    #[test]
    fn a_cookie_of_the_other_secret_is_valid_and_replaced() {
        let [one, two] = ["00112233445566778899aabbccddeeff", "FFEEDDCCBBAA99887766554433221100"];
        let signer = |text: &str| super::signer(text).unwrap();
        let peer = PEER.parse().unwrap();
        let mut made = cookie("2464c4abcf10c957");
        signer(&format!("{one}\n")).check_and_sign(&mut made, peer, MADE);
        made.is_returned = true;
        for (lines, status, is_same) in [
            (format!("{one}\n{two}"), CookieStatus::Valid, true),
            (format!("{two}\n\n  {one}  \r\n"), CookieStatus::Valid, false),
            (two.to_owned(), CookieStatus::Invalid, false),
        ] {
            let mut cookie = made;
            assert_eq!(signer(&lines).check_and_sign(&mut cookie, peer, MADE + 1), status, "{lines}");
            assert_eq!(cookie == made, is_same, "{lines}");
        }
    }

    #[test]
    fn clones_use_the_secrets_that_were_read_last() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [one, two] = ["00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"];
        let peer = PEER.parse().unwrap();
        let status = |signer: &CookieSigner, mut cookie: Cookie| {
            cookie.is_returned = true;
            signer.check_and_sign(&mut cookie, peer, MADE)
        };
        std::fs::write(&file, one).unwrap();
        let signer = CookieSigner::load(file.path()).unwrap();
        let mut made = cookie("2464c4abcf10c957");
        signer.check_and_sign(&mut made, peer, MADE);
        for (text, is_good, expected) in [
            (two, true, CookieStatus::Invalid),
            ("none", false, CookieStatus::Invalid),
            (one, true, CookieStatus::Valid),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(signer.clone().reload(file.path()).is_ok(), is_good);
            assert_eq!(status(&signer, made), expected, "{text}");
        }
    }

    #[test]
    fn the_error_for_a_bad_file_is_one_line_without_its_content() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("secret");
        let load = || CookieSigner::load(&file).unwrap_err().to_string();
        assert!(load().contains("No such file"), "{}", load());
        let good = "00112233445566778899aabbccddeeff";
        for text in ["", "\n", "0011", &format!("{good}0"), &good.replace('0', "+"), &[good; 3].join("\n")] {
            std::fs::write(&file, text).unwrap();
            let error = load();
            assert!(error.starts_with("--cookie-secret-file /") && error.contains("32 hex"), "{error}");
            assert!(!error.contains('\n') && !error.contains("0011"), "{error}");
        }
    }
}
