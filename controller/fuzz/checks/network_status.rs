//! Any annotation: it is read to what a slice may hold, or refused in one short line.

use super::hold;
use multinet_controller::network_status::{KEY, MAX_ATTACHMENTS, read};

/// Checks what is read of these bytes.
pub(crate) fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let status = read(KEY, &text, "own");
    for attachment in status.reported.iter().flatten() {
        hold::addresses(&attachment.addresses);
        hold::device(&attachment.device);
        assert_eq!(attachment.networks.len(), 1);
    }
    assert!(status.reported.as_ref().map_or(0, Vec::len) <= MAX_ATTACHMENTS);
    status.reported.err().iter().chain(&status.rejected).for_each(hold::line);
}
