//! Checks that any annotation is parsed to valid values only, or to a short message of one
//! line.

use super::hold;
use multinet_controller::sources::multus::{KEY, MAX_ATTACHMENTS};
use multinet_controller::sources::{PodAnnotations, ovn_kubernetes, report};

/// Parses `bytes` and checks the result.
pub(crate) fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    for key in [KEY, ovn_kubernetes::KEY, "k8s.v1.cni.cncf.io/networks"] {
        let annotations = [(key.to_owned(), text.clone()), (KEY.to_owned(), text.clone())].into();
        let report = report(&PodAnnotations { namespace: "own", annotations: &annotations });
        for attachment in &report.interfaces.attachments {
            hold::addresses(&attachment.addresses);
            hold::device(&attachment.device);
            assert_eq!(attachment.networks.len(), 1);
        }
        let interfaces = report.interfaces.attachments.len() + report.interfaces.addressless.len();
        assert!(interfaces <= 2 * MAX_ATTACHMENTS, "{interfaces}");
        report.unreadable.iter().chain(&report.rejected).for_each(hold::line);
    }
}
