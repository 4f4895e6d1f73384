//! Names of peers: the expected ones, and those in a certificate.

use std::fmt;
use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use webpki::EndEntityCert;

const SCHEME: &str = "spiffe://";

/// Name that this side accepts in a peer's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExpectedName {
    /// The certificate has exactly this SPIFFE ID.
    SpiffeId(String),
    /// The certificate has a SPIFFE ID that begins with this text, which ends with a slash.
    SpiffePrefix(String),
    /// The certificate is for this DNS name, which has no wildcard. The certificate may have one.
    Dns(DnsName<'static>),
}

impl ExpectedName {
    /// Parses a SPIFFE ID, which may end in `/*` for all below it, or a DNS name.
    ///
    /// # Errors
    ///
    /// A description of the problem, with the remedy.
    pub(super) fn parse(name: &str) -> Result<Self, &'static str> {
        if let Some(id) = name.strip_prefix(SCHEME) {
            let (id, is_prefix) = id.strip_suffix("/*").map_or((id, false), |id| (id, true));
            check_id(id)?;
            return Ok(if is_prefix {
                Self::SpiffePrefix(format!("{SCHEME}{id}/"))
            } else {
                Self::SpiffeId(name.to_owned())
            });
        }
        if name.parse::<IpAddr>().is_ok() {
            return Err("the addresses of pods come and go; give a SPIFFE ID or a DNS name");
        }
        if name.starts_with("*.") {
            return Err(
                "a wildcard belongs in the certificate; give a DNS name, or a SPIFFE ID that ends with /*",
            );
        }
        if name.contains("://") {
            return Err("only SPIFFE IDs are accepted among URIs; give one, or a DNS name");
        }
        dns_name(name).map(Self::Dns).ok_or("it is neither a SPIFFE ID nor a DNS name; give one of these")
    }

    /// Returns whether a certificate has this name. Does not verify the certificate's chain.
    pub(super) fn matches(&self, certificate: &EndEntityCert<'_>) -> bool {
        match self {
            Self::Dns(name) => {
                let name = ServerName::DnsName(name.borrow());
                certificate.verify_is_valid_for_subject_name(&name).is_ok()
            }
            Self::SpiffeId(_) | Self::SpiffePrefix(_) => {
                // A certificate with several URI names is not a SPIFFE identity (X.509-SVID §2).
                let mut uris = certificate.valid_uri_names();
                matches!((uris.next(), uris.next()), (Some(uri), None) if self.is_id(uri))
            }
        }
    }

    /// Returns whether a certificate's URI is an accepted SPIFFE ID, compared byte by byte.
    fn is_id(&self, uri: &str) -> bool {
        match self {
            Self::SpiffeId(id) => uri == id,
            // The rest is checked, too, so that `..` cannot leave the prefix.
            Self::SpiffePrefix(prefix) => {
                uri.starts_with(prefix) && uri.strip_prefix(SCHEME).is_some_and(|id| check_id(id).is_ok())
            }
            Self::Dns(_) => false,
        }
    }
}

impl fmt::Display for ExpectedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpiffeId(id) => f.write_str(id),
            Self::SpiffePrefix(prefix) => write!(f, "{prefix}*"),
            Self::Dns(name) => f.write_str(name.as_ref()),
        }
    }
}

/// Parses a DNS name, with or without a dot at its end. `None` if it is malformed.
pub(super) fn dns_name(name: &str) -> Option<DnsName<'static>> {
    let name = DnsName::try_from(name.strip_suffix('.').unwrap_or(name)).ok()?;
    Some(name.to_owned())
}

/// Checks the syntax of a SPIFFE ID without its scheme. The error is the fault (SPIFFE-ID §2).
fn check_id(id: &str) -> Result<(), &'static str> {
    if id.len() > 2048 - SCHEME.len() {
        return Err("a SPIFFE ID has at most 2048 bytes; shorten it");
    }
    let (domain, path) = id.split_once('/').map_or((id, None), |(domain, path)| (domain, Some(path)));
    let in_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    if domain.is_empty() || domain.len() > 255 || !domain.bytes().all(in_domain) {
        return Err("a trust domain has small letters, digits, dots, dashes and underscores; write it as \
             spiffe://cluster.local/…");
    }
    let in_path = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    for segment in path.into_iter().flat_map(|path| path.split('/')) {
        if segment.is_empty() || segment == "." || segment == ".." || !segment.bytes().all(in_path) {
            return Err(
                "a part of its path is empty, dots, or has other than letters, digits, dots, dashes and \
                 underscores; write it as spiffe://cluster.local/ns/…/sa/…, with /* only at its end",
            );
        }
    }
    Ok(())
}

/// Returns the names that identify the holder of a certificate: its URIs, of which a SPIFFE
/// certificate has one, or else its DNS names. Sorted.
pub(super) fn holder_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let mut names: Vec<&str> = certificate.valid_uri_names().collect();
    if names.is_empty() {
        names.extend(certificate.valid_dns_names());
    }
    names.sort_unstable();
    names.into_iter().map(ToOwned::to_owned).collect()
}

/// Returns the URI and DNS names that a certificate claims, safe to log even if an attacker made
/// it.
pub(super) fn presented_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    /// Maximum number of names that are listed: more than a person reads.
    const MAX_NAMES: usize = 64;
    /// Maximum length of a listed name, in characters: the limit for DNS, and long for a SPIFFE ID.
    const MAX_LENGTH: usize = 255;
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let names = certificate.valid_uri_names().chain(certificate.valid_dns_names());
    names
        .take(MAX_NAMES)
        .map(|name| match name.char_indices().nth(MAX_LENGTH) {
            Some((end, _)) => format!("{}…", name[..end].escape_debug()),
            None => name.escape_debug().to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(uris: &[&str], dns: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = (uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap())))
            .chain(dns.iter().map(|&name| SanType::DnsName(name.try_into().unwrap())))
            .collect();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn is_of(expected: &str, certificate: &CertificateDer<'_>) -> bool {
        ExpectedName::parse(expected).unwrap().matches(&EndEntityCert::try_from(certificate).unwrap())
    }

    #[test]
    fn a_spiffe_id_matches_exactly_or_by_its_prefix() {
        let id = "spiffe://cluster.local/ns/vision/sa/infer";
        let below = "spiffe://cluster.local/ns/vision/*";
        let domain = "spiffe://cluster.local/*";
        for (expected, uri, fits) in [
            (id, id, true),
            (id, "spiffe://cluster.local/ns/vision/sa/infer/", false),
            (id, "spiffe://cluster.local/ns/vision/sa/infer2", false),
            (id, "spiffe://cluster.local/ns/vision/sa/infe", false),
            (id, "spiffe://cluster.local/ns/vision/sa/Infer", false),
            (id, "spiffe://Cluster.local/ns/vision/sa/infer", false),
            (id, "SPIFFE://cluster.local/ns/vision/sa/infer", false),
            (id, "spiffe://cluster.example/ns/vision/sa/infer", false),
            (id, "spiffe://cluster.local.evil/ns/vision/sa/infer", false),
            (id, "https://cluster.local/ns/vision/sa/infer", false),
            (id, "spiffe://cluster.local/ns/vision/sa/%69nfer", false),
            (id, "spiffe://cluster.local:80/ns/vision/sa/infer", false),
            (id, " spiffe://cluster.local/ns/vision/sa/infer", false),
            (id, "spiffe://cluster.local/ns/vision/sa/infer?x", false),
            (id, "spiffe://cluster.local", false),
            (id, "", false),
            (below, id, true),
            (below, "spiffe://cluster.local/ns/vision/x", true),
            (below, "spiffe://cluster.local/ns/vision", false),
            (below, "spiffe://cluster.local/ns/vision/", false),
            (below, "spiffe://cluster.local/ns/visions/sa/infer", false),
            (below, "spiffe://cluster.local/ns/vision-2/sa/infer", false),
            (below, "spiffe://cluster.local/ns/Vision/sa/infer", false),
            (below, "spiffe://cluster.example/ns/vision/sa/infer", false),
            (below, "spiffe://cluster.local/ns/vision/../audio/sa/infer", false),
            (below, "spiffe://cluster.local/ns/vision//infer", false),
            (below, "spiffe://cluster.local/ns/vision/*", false),
            (below, "spiffe://cluster.local/ns/vision/sa/infer?x", false),
            (below, "x-spiffe://cluster.local/ns/vision/sa/infer", false),
            (domain, id, true),
            (domain, "spiffe://cluster.local", false),
            (domain, "spiffe://cluster.local.evil/ns/vision/sa/infer", false),
            (domain, "spiffe://cluster.localhost/x", false),
            ("spiffe://cluster.local", "spiffe://cluster.local", true),
            ("spiffe://cluster.local", id, false),
        ] {
            assert_eq!(ExpectedName::parse(expected).unwrap().is_id(uri), fits, "{expected} {uri}");
        }
        assert!(is_of(id, &certificate(&[id], &[])));
        assert!(is_of(id, &certificate(&[id], &["a.test", "b.test"])));
        assert!(!is_of(id, &certificate(&[id, "spiffe://cluster.local/ns/vision/sa/other"], &[])));
        assert!(!is_of(id, &certificate(&["https://a.test/", id], &[])));
        assert!(!is_of(id, &certificate(&[], &["cluster.local"])));
    }

    #[test]
    fn a_dns_name_matches_names_and_wildcards_of_a_certificate() {
        for (expected, name, fits) in [
            ("infer.vision.svc", "infer.vision.svc", true),
            ("Infer.Vision.SVC", "infer.vision.svc", true),
            ("infer.vision.svc", "INFER.vision.svc", true),
            ("infer.vision.svc.", "infer.vision.svc", true),
            ("infer.vision.svc", "infer.vision", false),
            ("infer.vision", "infer.vision.svc", false),
            ("infer.vision.svc", "xinfer.vision.svc", false),
            ("infer.vision.svc", "*.vision.svc", true),
            ("infer.vision.svc", "*.VISION.svc", true),
            ("infer-0.infer.vision.svc", "*.vision.svc", false),
            ("infer-0.infer.vision.svc", "*.infer.vision.svc", true),
            ("vision.svc", "*.vision.svc", false),
            ("vision.svc", "*.svc", false), // no wildcard right below the top
            ("infer.vision.svc", "*", false),
            ("infer.vision.svc", "infer.*.svc", false),
            ("infer.vision.svc", "*.*.svc", false),
            ("infer.vision.svc", "inf*.vision.svc", false),
            ("infer.vision.svc", "*fer.vision.svc", false),
            ("infer.vision.svc", "infer.vision.svc.", false), // RFC 5280 has no dot at the end
            ("infer.vision.svc", "", false),
            ("infer", "infer", true),
            ("_rdma._tcp.infer.svc", "_rdma._tcp.infer.svc", true),
            ("xn--bcher-kva.test", "xn--bcher-kva.test", true),
        ] {
            assert_eq!(is_of(expected, &certificate(&[], &[name])), fits, "{expected} {name}");
        }
        assert!(!is_of("a.test", &certificate(&["spiffe://a.test", "https://a.test/"], &[])));
        assert!(is_of("b.test", &certificate(&["spiffe://td/x"], &["a.test", "b.test"])));
    }

    #[test]
    fn a_common_name_and_an_address_do_not_count_as_names() {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "a.test");
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert!(!is_of("a.test", certificate.der()));
        assert_eq!(presented_names(certificate.der()), Vec::<String>::new());
    }

    #[test]
    fn an_invalid_name_is_refused_with_the_reason() {
        for (name, says) in [
            ("", "neither"),
            ("a b", "neither"),
            ("a..b", "neither"),
            ("-a.test", "neither"),
            ("a.*.test", "neither"),
            ("*", "neither"),
            ("*.test", "wildcard"),
            ("10.0.0.1", "addresses"),
            ("fd00::1", "addresses"),
            ("https://a.test", "only SPIFFE"),
            ("SPIFFE://td/a", "only SPIFFE"),
            ("spiffe://", "trust domain"),
            ("spiffe:///a", "trust domain"),
            ("spiffe://*", "trust domain"),
            ("spiffe:///*", "trust domain"),
            ("spiffe://TD/a", "trust domain"),
            ("spiffe://td:1/a", "trust domain"),
            ("spiffe://u@td/a", "trust domain"),
            ("spiffe://td/", "part of its path"),
            ("spiffe://td/a/", "part of its path"),
            ("spiffe://td//*", "part of its path"),
            ("spiffe://td/a*", "part of its path"),
            ("spiffe://td/*/a", "part of its path"),
            ("spiffe://td/**", "part of its path"),
            ("spiffe://td/a/../b", "part of its path"),
            ("spiffe://td/a?b", "part of its path"),
            ("spiffe://td/a%20b", "part of its path"),
        ] {
            let problem = ExpectedName::parse(name).unwrap_err();
            assert!(problem.contains(says), "{name}: {problem}");
        }
        assert!(
            ExpectedName::parse(&format!("spiffe://td/{}", "a".repeat(2048))).unwrap_err().contains("2048")
        );
    }

    #[test]
    fn a_name_is_displayed_as_it_was_given() {
        for name in ["spiffe://td/a", "spiffe://td/*", "spiffe://td/a/*", "a.test"] {
            assert_eq!(ExpectedName::parse(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn presented_names_are_escaped_and_limited() {
        let long = format!("spiffe://td/{}", "a".repeat(5000));
        let names =
            presented_names(&certificate(&["spiffe://td/\n\u{1b}[31mx", &long], &["a.test", "*.b.test"]));
        assert_eq!(names[0], "spiffe://td/\\n\\u{1b}[31mx");
        assert_eq!(names[1].chars().count(), 256);
        assert_eq!(names[2..], ["a.test", "*.b.test"]);
        let many: Vec<String> = (0..500).map(|number| format!("n{number}.test")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(presented_names(&certificate(&[], &many)).len(), 64);
        assert_eq!(presented_names(&CertificateDer::from(vec![1, 2, 3])), Vec::<String>::new());
    }
}
