//! Memory of a GPU, for which a mapping of this process stands in: the fake device accesses it by
//! its address.
#![allow(unsafe_code, reason = "stands in for a GPU")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use multinet_memory::{DmaBuf, Forced, Gpu, GpuError, GpuMemory, HostMemory, Method};

use super::{LENGTH, Rig, assert_fails, outcomes, pattern, size};
use crate::fake::{Fake, Verb, gid};
use crate::gpu::{RETRY_AFTER, Refusal};
use crate::memory::Memory;
use crate::{
    Call, GPU_PROBE_SIZE, GpuAccessError, GpuPages, ProbeError, ProtectionDomain, SourceGid, Write, ZeroCopy,
    choose_gpu_method, probe_gpu,
};

fn source() -> SourceGid {
    SourceGid { port: 1, gid_index: 1, gid: gid() }
}

#[derive(Debug)]
struct Mapping(Arc<Mapped>);

struct Mapped {
    memory: Memory,
    /// Writes to it are lost.
    loses_writes: AtomicBool,
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a mapping")
    }
}

impl Gpu for Mapping {
    fn name(&self) -> &str {
        "mapping"
    }

    fn allocate(&self, _length: NonZeroUsize) -> Result<Arc<dyn GpuMemory>, GpuError> {
        Err(GpuError::new("there is no more"))
    }

    fn host(&self, _length: NonZeroUsize) -> Result<HostMemory, GpuError> {
        Err(GpuError::new("there is no more"))
    }
}

// SAFETY: the mapping lives as long as the value.
unsafe impl GpuMemory for Mapping {
    fn gpu(&self) -> &dyn Gpu {
        self
    }

    fn address(&self) -> usize {
        self.0.memory.start().expose_provenance().get()
    }

    fn length(&self) -> usize {
        self.0.memory.length()
    }

    fn export(&self) -> Result<DmaBuf, GpuError> {
        let fd = File::open("/dev/null").map_err(|error| GpuError::new(error.to_string()))?;
        Ok(DmaBuf { fd: fd.into(), offset: 8192 })
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        assert!(offset + bytes.len() <= self.length());
        // SAFETY: within the mapping, which nothing writes to meanwhile.
        unsafe {
            self.0
                .memory
                .start()
                .add(offset)
                .copy_to_nonoverlapping(std::ptr::NonNull::from(&mut *bytes).cast(), bytes.len());
        };
        Ok(())
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        assert!(offset + bytes.len() <= self.length());
        if !self.0.loses_writes.load(Ordering::Relaxed) {
            // SAFETY: within the mapping, which nothing reads meanwhile.
            unsafe {
                self.0
                    .memory
                    .start()
                    .add(offset)
                    .copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len());
            };
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), GpuError> {
        Ok(())
    }
}

fn mapping(length: usize) -> (Arc<dyn GpuMemory>, Arc<Mapped>) {
    let mapped = Mapped { memory: Memory::new(size(length)).unwrap(), loses_writes: AtomicBool::new(false) };
    let mapped = Arc::new(mapped);
    (Arc::new(Mapping(Arc::clone(&mapped))), mapped)
}

const METHODS: [(Method, Verb, Call); 2] =
    [(Method::DmaBuf, Verb::RegDmaBuf, Call::DMA_BUF), (Method::PeerMemory, Verb::RegMr, Call::PEER_MEMORY)];

#[test]
fn gpu_memory_is_sent_in_place_after_copied_bytes() {
    for (method, _, _) in METHODS {
        let rig = Rig::new();
        let (memory, _) = mapping(LENGTH);
        memory.write(0, &pattern(LENGTH)).unwrap();
        let pages = GpuPages::new(Arc::clone(&memory));
        let send = |range| {
            let zero_copy = Some((ZeroCopy::Gpu(&pages), range));
            rig.sender.post_writes(&[Write { zero_copy, ..rig.sge(1, 0..10) }])
        };
        assert_fails(send(0..1), Call::REACH, libc::EINVAL);
        pages.register(&rig.domain, method).unwrap();
        assert_fails(send(0..LENGTH + 1), Call::REACH, libc::EINVAL);
        send(5..5005).unwrap();
        assert_eq!(rig.received()[10..5010], pattern(LENGTH)[5..5005]);
        assert_eq!(outcomes(&rig.sent), [(1, None)]);
    }
}

#[test]
fn short_writes_of_gpu_memory_are_not_inline() {
    let rig = Rig::new();
    let (memory, _) = mapping(LENGTH);
    let pages = GpuPages::new(Arc::clone(&memory));
    pages.register(&rig.domain, Method::DmaBuf).unwrap();
    rig.fake.hold();
    let zero_copy = Some((ZeroCopy::Gpu(&pages), 0..4));
    rig.sender.post_writes(&[Write { zero_copy, ..rig.sge(1, 0..1) }]).unwrap();
    // Inline data would have been read already.
    memory.write(0, b"late").unwrap();
    rig.fake.release();
    assert_eq!(rig.received()[1..5], *b"late");
}

#[test]
fn a_peer_writes_to_gpu_memory() {
    for (method, _, _) in METHODS {
        let rig = Rig::new();
        let (memory, mapped) = mapping(LENGTH);
        let receive_buffer = rig.domain.gpu_receive_buffer(memory, method).unwrap();
        let remote = receive_buffer.remote();
        rig.sender.post_writes(&[Write { remote, ..rig.sge(1, 0..LENGTH) }]).unwrap();
        let mut found = vec![0; LENGTH];
        receive_buffer.memory().read(0, &mut found).unwrap();
        assert_eq!(found, pattern(LENGTH));
        // The buffer and the fake's registration both hold it.
        drop(receive_buffer);
        assert_eq!(Arc::strong_count(&mapped), 1);
        rig.sender.post_writes(&[Write { remote, ..rig.sge(2, 0..1) }]).unwrap();
        let outcomes = outcomes(&rig.sent);
        assert!(matches!(outcomes[..], [(1, None), (2, Some(_))]), "{outcomes:?}");
    }
}

#[test]
fn a_failed_registration_names_the_side_that_refused() {
    let (memory, _) = mapping(LENGTH);
    let reach =
        |rig: &Rig, method| rig.domain.gpu_receive_buffer(Arc::clone(&memory), method).map(drop).unwrap_err();
    for (method, verb, call) in METHODS {
        let rig = Rig::new();
        rig.fake.fail(verb, libc::EOPNOTSUPP);
        assert!(matches!(reach(&rig, method), GpuAccessError::Call { call: error } if error.call() == call));
    }
    let rig = Rig::new();
    assert!(matches!(reach(&rig, Method::Staging), GpuAccessError::Method(Method::Staging)));
    assert!(ProtectionDomain::new(&rig.context).unwrap().supports_dma_buf().unwrap());
}

/// The GPU or the device is short of something. For memory that the kernel finds by its address, it
/// may also be the limit of locked memory.
#[test]
fn a_failed_registration_names_the_exhausted_resource() {
    let (memory, _) = mapping(LENGTH);
    let hint = |(method, verb, _), errno| {
        let rig = Rig::new();
        rig.fake.fail(verb, errno);
        let error = rig.domain.gpu_receive_buffer(Arc::clone(&memory), method).map(drop).unwrap_err();
        error.to_string()
    };
    let [dma_buf, peer_memory] = METHODS;
    for (kind, errno, is_locking) in
        [(dma_buf, libc::ENOMEM, false), (dma_buf, libc::ENOSPC, false), (peer_memory, libc::ENOMEM, true)]
    {
        let said = hint(kind, errno);
        assert!(said.contains("BAR1") && said.contains("fewer slots"), "{said}");
        assert_eq!(said.contains("memlock"), is_locking, "{said}");
    }
    for kind in METHODS {
        let said = hint(kind, libc::EAGAIN);
        assert!(said.contains("no keys for memory left"), "{said}");
    }
    let said = hint(peer_memory, libc::EFAULT);
    assert!(said.starts_with("fake_0: cannot register a GPU's memory: Bad address"), "{said}");
    assert!(said.contains("nvidia-peermem"), "{said}");
}

#[test]
fn memory_is_refused_after_a_failure_unless_the_device_is_gone() {
    let cases = [
        (libc::EFAULT, true),
        (libc::EOPNOTSUPP, true),
        (libc::ENOMEM, true),
        (libc::EIO, false),
        (libc::ENXIO, false),
        (libc::ENODEV, false),
    ];
    for (errno, is_refused) in cases {
        for (method, verb, _) in METHODS {
            let rig = Rig::new();
            let pages = GpuPages::new(mapping(LENGTH).0);
            rig.fake.fail(verb, errno);
            pages.register(&rig.domain, method).unwrap_err();
            assert_eq!(pages.is_refused(), is_refused, "{errno}");
            assert_eq!(pages.has_been_refused(), is_refused, "{errno}");
        }
    }
}

#[test]
fn a_registration_without_room_is_tried_again_later() {
    let now = Instant::now();
    for (errno, is_later) in [(libc::ENOMEM, true), (libc::EAGAIN, true), (libc::EFAULT, false)] {
        let rig = Rig::new();
        let pages = GpuPages::new(mapping(LENGTH).0);
        rig.fake.fail(Verb::RegDmaBuf, errno);
        let error = pages.register(&rig.domain, Method::DmaBuf).unwrap_err();
        let refused = Refusal::by(&error, now);
        let holds = |after| refused.holds(|| now + after);
        assert!(holds(RETRY_AFTER / 2), "{errno}");
        assert_eq!(holds(RETRY_AFTER), !is_later, "{errno}");
        // A device that is full does not lift the refusal of another one.
        rig.fake.fail(Verb::RegDmaBuf, libc::ENOMEM);
        pages.register(&rig.domain, Method::DmaBuf).unwrap_err();
        assert!(pages.is_refused());
    }
    assert!(!Refusal::default().holds(|| now));
}

/// One device could take the memory later, another never will.
#[test]
fn a_lack_of_room_is_a_temporary_reason_against_a_method() {
    let cases =
        [(libc::ENOMEM, true), (libc::EAGAIN, true), (libc::EOPNOTSUPP, false), (libc::EFAULT, false)];
    for (errno, is_temporary) in cases {
        let fake = Fake::new();
        let (memory, _) = mapping(GPU_PROBE_SIZE.get());
        let context = fake.open();
        fake.fail(Verb::RegDmaBuf, errno);
        let reached = choose_gpu_method(&context, source(), &memory, Forced::No);
        assert_eq!(
            (reached.method, reached.is_temporary),
            (Some(Method::Staging), is_temporary),
            "{reached:?}"
        );
        // No call reached the memory.
        fake.fail(Verb::AllocPd, errno);
        let reached = choose_gpu_method(&context, source(), &memory, Forced::No);
        assert_eq!(
            (reached.method, reached.is_temporary),
            (Some(Method::Staging), is_temporary),
            "{reached:?}"
        );
        fake.stop_failing();
        let reached = choose_gpu_method(&context, source(), &memory, Forced::No);
        assert_eq!((reached.method, reached.is_temporary), (Some(Method::DmaBuf), false), "{reached:?}");
        // A method that corrupted bytes is not tried again.
        fake.configure(|world| world.corrupts_bytes = true);
        let reached = choose_gpu_method(&context, source(), &memory, Forced::No);
        assert_eq!((reached.method, reached.is_temporary), (Some(Method::Staging), false), "{reached:?}");
        drop(context);
        fake.wait_until(str::is_empty);
    }
}

#[test]
fn gpu_memory_is_probed_in_both_directions() {
    for (method, _, _) in METHODS {
        let fake = Fake::new();
        let (memory, mapped) = mapping(64 << 10);
        let context = fake.open();
        let tried = || probe_gpu(&context, source(), &memory, method);
        tried().unwrap();
        // Bytes that are written to the GPU cannot be read from it.
        mapped.loses_writes.store(true, Ordering::Relaxed);
        assert!(matches!(tried(), Err(ProbeError::Different { .. })));
        mapped.loses_writes.store(false, Ordering::Relaxed);
        fake.configure(|world| world.corrupts_bytes = true);
        assert!(matches!(tried(), Err(ProbeError::Different { .. })));
        drop(context);
        // The last objects are dropped on a background thread.
        fake.wait_until(str::is_empty);
    }
}
