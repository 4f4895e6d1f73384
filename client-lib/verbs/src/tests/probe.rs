use rdma_sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR;

use crate::fake::{Fake, Verb, gid};
use crate::probe::probe_by;
use crate::{Call, ProbeError, Probed, SourceGid};

fn probed(fake: &Fake, device: &str, port: u8, gid_index: u8) -> Result<Probed, ProbeError> {
    probe_by(fake.library(), device, SourceGid { port, gid_index, gid: gid() })
}

#[test]
fn a_device_that_writes_to_itself_passes_the_probe() {
    let fake = Fake::new();
    assert_eq!(probed(&fake, "fake_0", 1, 1).unwrap(), Probed { mtu: 1024 });
    assert_eq!(fake.remaining(), "");
}

#[test]
fn a_failed_probe_names_the_cause() {
    let fake = Fake::new();
    let failure = |device, port, gid_index| probed(&fake, device, port, gid_index).unwrap_err();
    assert_eq!(failure("fake_1", 1, 1).to_string(), "libibverbs does not show fake_1");
    // The GID at the other index is not the one that is written to.
    let error = failure("fake_0", 1, 0);
    assert!(
        matches!(&error, ProbeError::Failed { gid_index: 0, status, .. } if status.code() == IBV_WC_RETRY_EXC_ERR)
    );
    assert!(error.to_string().starts_with("fake_0 cannot write to itself by GID 0: transport retry"));
    assert!(error.hint().unwrap().contains("wrong GID index"));
    assert!(matches!(failure("fake_0", 2, 1), ProbeError::Call(error) if error.call() == Call::QUERY));
    assert!(
        matches!(failure("fake_0", 1, 9), ProbeError::Call(error) if error.call() == Call::READY_TO_RECEIVE)
    );
    fake.configure(|world| world.corrupts_bytes = true);
    assert!(matches!(failure("fake_0", 1, 1), ProbeError::Different { .. }));
    fake.configure(|world| world.is_active = false);
    assert_eq!(failure("fake_0", 1, 1).to_string(), "fake_0 port 1 is not active");
    assert_eq!(fake.remaining(), "");
}

#[test]
fn a_failure_of_any_call_leaves_nothing_behind() {
    let fake = Fake::new();
    probed(&fake, "fake_0", 1, 1).unwrap();
    for (number, &verb) in fake.calls().iter().enumerate() {
        let fake = Fake::new();
        fake.fail_call(number, libc::EOPNOTSUPP);
        match (probed(&fake, "fake_0", 1, 1), verb) {
            // It is tried again without inline data.
            (Ok(_), Verb::CreateQp) => {}
            (Err(ProbeError::Call(_)), _) => {}
            (outcome, _) => panic!("{verb:?}: {outcome:?}"),
        }
        assert_eq!(fake.remaining(), "");
    }
}
