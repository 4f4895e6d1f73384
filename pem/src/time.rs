//! Validity periods of certificate chains.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

use crate::FileProblem;

/// Returns why a chain cannot be used now: its first certificate has expired, or is not valid yet.
/// The other certificates do not count, because many chains end in an expired one that clients do
/// not need.
pub fn validity_problem(chain: &[CertificateDer<'_>], now: UnixTime) -> Option<FileProblem> {
    chain.first().and_then(|certificate| {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // webpki checks the validity period first. It then fails for lack of trust anchors, which
        // is no problem here.
        let verified = certificate.verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None);
        match verified.err()? {
            Error::CertExpired { time, not_after } => Some(FileProblem::Expired(elapsed(not_after, time))),
            Error::CertNotValidYet { time, not_before } => {
                Some(FileProblem::TooEarly(elapsed(time, not_before)))
            }
            _ => None,
        }
    })
}

/// Returns why the chain `new` must not replace `old`: `new` is not valid now, while `old` is.
pub fn replacement_problem(
    old: &[CertificateDer<'_>],
    new: &[CertificateDer<'_>],
    now: UnixTime,
) -> Option<FileProblem> {
    validity_problem(new, now).filter(|_| validity_problem(old, now).is_none())
}

fn elapsed(from: UnixTime, to: UnixTime) -> Duration {
    Duration::from_secs(to.as_secs().saturating_sub(from.as_secs()))
}

#[cfg(test)]
mod tests {
    use multinet_testing::pki::Authority;
    use rcgen::date_time_ymd;

    use super::*;

    /// Returns the chain of a certificate that is valid in 2024 and 2025, with an intermediate one.
    fn chain() -> Vec<CertificateDer<'static>> {
        let issued = Authority::new().below("between").issue_as(&["dns.test"], |params| {
            (params.not_before, params.not_after) = (date_time_ymd(2024, 1, 1), date_time_ymd(2026, 1, 1));
        });
        crate::certificates(issued.chain.as_bytes()).unwrap()
    }

    /// Returns the first of January of a year.
    fn year(year: i32) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(date_time_ymd(year, 1, 1).unix_timestamp() as u64))
    }

    #[test]
    fn a_chain_is_refused_before_and_after_its_validity_period() {
        let chain = chain();
        assert_eq!(chain.len(), 2);
        let days = |days: u64| Duration::from_secs(days * 86_400);
        assert!(
            matches!(validity_problem(&chain, year(2023)), Some(FileProblem::TooEarly(by)) if by == days(365))
        );
        assert!(validity_problem(&chain, year(2025)).is_none());
        assert!(
            matches!(validity_problem(&chain, year(2027)), Some(FileProblem::Expired(by)) if by == days(365))
        );
        assert!(validity_problem(&[], year(2025)).is_none());
    }

    #[test]
    fn a_valid_chain_is_replaced_only_by_a_valid_chain() {
        let old = Authority::new().issue(&["dns.test"]);
        let old = crate::certificates(old.chain.as_bytes()).unwrap();
        assert!(replacement_problem(&old, &chain(), year(2025)).is_none());
        for at in [2023, 2027] {
            assert!(replacement_problem(&old, &chain(), year(at)).is_some(), "{at}");
            assert!(replacement_problem(&chain(), &chain(), year(at)).is_none(), "{at}");
            assert!(replacement_problem(&chain(), &old, year(at)).is_none(), "{at}");
        }
    }
}
