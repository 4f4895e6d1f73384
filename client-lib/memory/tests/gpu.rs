//! Tests of GPUs by CUDA, and of machines without a driver.
#![allow(unsafe_code, reason = "a program's own pointers")]
#![allow(clippy::unwrap_used, reason = "test code")]

#[allow(unreachable_pub, reason = "of multinet-testing, which takes all other crates to build")]
#[path = "../../../testing/src/skip.rs"]
mod skip;

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use cudarc::driver::{result, sys};
use multinet_memory::{Cuda, Gpu, GpuError, GpuMemory, GpuSlice};

const MIB: usize = 1 << 20;

/// Held for writing by tests that capture a graph, which then have the GPU for themselves.
static CAPTURE: RwLock<()> = RwLock::new(());

/// A GPU, with the lock that a test holds for it.
struct Held<G> {
    gpu: Arc<Cuda>,
    _guard: G,
}

impl<G> Deref for Held<G> {
    type Target = Arc<Cuda>;

    fn deref(&self) -> &Arc<Cuda> {
        &self.gpu
    }
}

/// Returns the first GPU, or skips the test if there is none. If NVIDIA's kernel module shows a GPU
/// to the process, CUDA has to find one.
macro_rules! gpu {
    () => {
        gpu!(read)
    };
    ($how:ident) => {
        match Cuda::device(0) {
            Ok(gpu) => Held { gpu, _guard: CAPTURE.$how().unwrap_or_else(PoisonError::into_inner) },
            Err(error) if Path::new("/dev/nvidiactl").exists() => return Err(error),
            Err(error) => skip!("no GPU: {error}"),
        }
    };
}

fn length(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::new(bytes).unwrap()
}

/// Returns bytes that depend on their position, so that no two pieces of a copy are equal.
fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    let byte = |index: usize| (index.wrapping_mul(31) + (index >> 8) + (index >> 20) + seed * 7) as u8;
    (0..bytes).map(byte).collect()
}

#[test]
fn without_a_driver_every_call_is_an_error() -> Result<(), GpuError> {
    // SAFETY: the call loads libcuda, as any program does that uses it.
    if unsafe { sys::is_culib_present() } {
        skip!("there is a libcuda");
    }
    let errors =
        || [Cuda::count().unwrap_err(), Cuda::device(0).unwrap_err(), Cuda::device(u32::MAX).unwrap_err()];
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(errors)).collect();
    let others = threads.into_iter().flat_map(|thread| thread.join().unwrap());
    for error in errors().into_iter().chain(errors()).chain(others) {
        let error = error.to_string();
        assert!(error.starts_with("libcuda.so.1 cannot be loaded: request nvidia.com/gpu"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    Ok(())
}

#[test]
fn with_a_driver_a_missing_gpu_is_an_error() -> Result<(), GpuError> {
    // SAFETY: as above.
    if !unsafe { sys::is_culib_present() } {
        skip!("there is no libcuda");
    }
    let count = Cuda::count();
    for ordinal in [count.clone().unwrap_or(0), i32::MAX as u32 + 1, u32::MAX] {
        let error = Cuda::device(ordinal).unwrap_err();
        match &count {
            Ok(count) => {
                assert!(
                    error
                        .to_string()
                        .starts_with(&format!("there is no gpu {ordinal}: this process sees {count}")),
                    "{error}"
                );
            }
            // The machine has a driver, but no GPU.
            Err(reason) => assert_eq!(error, *reason),
        }
    }
    Ok(())
}

#[test]
fn a_gpu_has_a_name_and_a_pci_address() -> Result<(), GpuError> {
    let gpu = gpu!();
    let place = gpu.pci_address().unwrap_or_default();
    assert!(gpu.name().ends_with(&format!(" (gpu 0, {place})")), "{}", gpu.name());
    assert_eq!((gpu.ordinal(), place, place.split([':', '.']).count()), (0, &*place.to_lowercase(), 4));
    assert_eq!(Cuda::device(0)?.name(), gpu.name());
    println!("{:?}", *gpu);
    Ok(())
}

#[test]
fn new_memory_is_zero() -> Result<(), GpuError> {
    let gpu = gpu!();
    for bytes in [1, 4095, 4096, MIB, 2 * MIB + 1, 64 * MIB] {
        // Stale bytes show if the new memory is not zeroed.
        let before = gpu.allocate(length(bytes))?;
        before.write(0, &vec![0xff; bytes])?;
        drop(before);
        let memory = gpu.allocate(length(bytes))?;
        assert_eq!((memory.length(), memory.gpu().name()), (bytes, gpu.name()));
        let mut read = vec![1; bytes];
        memory.read(0, &mut read)?;
        assert!(read.iter().all(|byte| *byte == 0), "{bytes}");
    }
    Ok(())
}

#[test]
fn written_bytes_are_read_at_any_offset_and_size() -> Result<(), GpuError> {
    let gpu = gpu!();
    let memory = gpu.allocate(length(64 * MIB + 100))?;
    let sizes = [0, 1, 3, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB + 7, 64 * MIB];
    for (seed, bytes) in sizes.into_iter().enumerate() {
        for offset in [0, 1, 77] {
            let written = pattern(seed + offset, bytes);
            memory.write(offset, &written)?;
            let mut read = vec![0; bytes];
            memory.read(offset, &mut read)?;
            assert!(read == written, "{bytes} bytes at {offset}");
        }
    }
    // A range, by its slice.
    memory.write(0, &pattern(1, 1000))?;
    let slice = GpuSlice::new(Arc::clone(&memory), 100..200).unwrap();
    let mut read = vec![0; 100];
    slice.read(&mut read)?;
    assert_eq!(read, pattern(1, 1000)[100..200]);
    Ok(())
}

#[test]
fn a_range_outside_the_memory_is_refused() -> Result<(), GpuError> {
    let gpu = gpu!();
    let memory = gpu.allocate(length(100))?;
    for (offset, bytes) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (usize::MAX, 0)] {
        for error in [memory.read(offset, &mut vec![0; bytes]), memory.write(offset, &vec![0; bytes])] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("are not within the 100 that there are"), "{error}");
        }
    }
    memory.write(100, &[])?;
    memory.read(100, &mut [])
}

#[test]
fn several_threads_copy_at_once() -> Result<(), GpuError> {
    let gpu = gpu!();
    let memory = gpu.allocate(length(32 * MIB))?;
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let (gpu, memory) = (Arc::clone(&gpu), Arc::clone(&memory));
            thread::spawn(move || -> Result<(), GpuError> {
                for round in 0..10 {
                    let written = pattern(number * 100 + round, 4 * MIB - number);
                    memory.write(number * 4 * MIB, &written)?;
                    let mut read = vec![0; written.len()];
                    memory.read(number * 4 * MIB, &mut read)?;
                    assert!(read == written, "thread {number}, round {round}");
                    let own = gpu.allocate(length(MIB + 1 + number))?;
                    own.write(1, &written[..MIB])?;
                    own.read(1, &mut read[..MIB])?;
                    assert!(read[..MIB] == written[..MIB], "thread {number}, round {round}");
                }
                Ok(())
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join().unwrap())
}

#[test]
fn locked_memory_is_zero_and_is_copied_directly() -> Result<(), GpuError> {
    let gpu = gpu!();
    let memory = gpu.allocate(length(8 * MIB))?;
    let mut host = gpu.host(length(5 * MIB + 3))?;
    assert_eq!(host.length().get(), 5 * MIB + 3);
    assert!(host.bytes().iter().all(|byte| *byte == 0));
    make_primary_context_current();
    let mut kind = 0_u32;
    // SAFETY: `kind` outlives the call.
    let code = unsafe {
        sys::cuPointerGetAttribute(
            (&raw mut kind).cast(),
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            host.start().as_ptr() as u64,
        )
    };
    assert_eq!((code, kind), (sys::CUresult::CUDA_SUCCESS, sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32));
    let written = pattern(5, 5 * MIB);
    host.bytes_mut()[3..].copy_from_slice(&written);
    memory.write(9, &host.bytes()[3..])?;
    let mut read = vec![0; written.len()];
    memory.read(9, &mut read)?;
    assert!(read == written);
    host.bytes_mut().fill(0);
    memory.read(9, &mut host.bytes_mut()[1..=5 * MIB])?;
    assert!(host.bytes()[1..=5 * MIB] == written);
    // The memory outlives the thread, and every other handle of the GPU.
    drop((memory, gpu));
    thread::spawn(move || drop(host)).join().unwrap();
    Ok(())
}

#[test]
fn memory_that_is_locked_at_its_ends_only_is_copied() -> Result<(), GpuError> {
    let gpu = gpu!();
    make_primary_context_current();
    let memory = gpu.allocate(length(3 * MIB))?;
    let mut bytes = vec![0; 4 * MIB];
    let before = bytes.as_ptr().align_offset(4096);
    let bytes = &mut bytes[before..before + 3 * MIB];
    let ends = [0, 2 * MIB].map(|offset| bytes[offset..].as_mut_ptr().cast());
    for end in ends {
        // SAFETY: unlocked below, before it is freed.
        unsafe { sys::cuMemHostRegister_v2(end, MIB, 0) }.result().unwrap();
    }
    let written = pattern(4, 3 * MIB);
    bytes.copy_from_slice(&written);
    let up = memory.write(0, bytes);
    bytes.fill(0);
    let down = memory.read(0, bytes);
    for end in ends {
        // SAFETY: locked above.
        unsafe { sys::cuMemHostUnregister(end) }.result().unwrap();
    }
    up.and(down)?;
    assert!(bytes == written);
    Ok(())
}

#[test]
fn a_flush_succeeds_or_names_the_reason() -> Result<(), GpuError> {
    let gpu = gpu!();
    if let Err(error) = gpu.allocate(length(100))?.flush() {
        assert!(error.to_string().ends_with("frames have to come by staging"), "{error}");
        println!("{error}");
    }
    Ok(())
}

#[test]
fn memory_is_exported_with_its_offset() -> Result<(), GpuError> {
    let gpu = gpu!();
    let memory = gpu.allocate(length(4 * MIB))?;
    let whole = match memory.export() {
        Ok(whole) => whole,
        Err(error) if error.to_string().contains("does not export memory") => skip!("{error}"),
        Err(error) => return Err(error),
    };
    assert_eq!(whole.offset, 0);
    let link = std::fs::read_link(format!("/proc/self/fd/{}", whole.fd.as_raw_fd())).unwrap();
    assert!(link.to_string_lossy().contains("dmabuf"), "{link:?}");
    for offset in [1, 4096, 2 * MIB + 77] {
        let address = (memory.address() + offset) as u64;
        // SAFETY: the memory is its own owner, and nothing else uses it.
        let part = unsafe { gpu.memory(address, length(100), Arc::clone(&memory)) }?;
        assert_eq!(part.export()?.offset, offset as u64);
    }
    Ok(())
}

#[test]
fn pointers_of_the_program_are_verified() -> Result<(), GpuError> {
    let gpu = gpu!();
    let memory = gpu.allocate(length(4 * MIB))?;
    let address = memory.address() as u64;
    // SAFETY: the memory is its own owner, and nothing else uses it.
    let part = unsafe { gpu.memory(address + 5, length(4 * MIB - 5), Arc::clone(&memory)) }?;
    part.write(1, b"frame")?;
    let mut read = [0; 5];
    memory.read(6, &mut read)?;
    assert_eq!((&read, part.address() as u64, part.length()), (b"frame", address + 5, 4 * MIB - 5));

    let host = gpu.host(length(100))?;
    let heap = [0_u8; 100];
    let table = [
        (address, 4 * MIB + 1, "are more than the 4194304 that are allocated there"),
        (address + 4 * MIB as u64 - 1, 2, "are more than the 1 that are allocated there"),
        (host.start().as_ptr() as u64, 100, "memory of the machine's"),
        (heap.as_ptr() as u64, 100, "not in memory that CUDA has allocated"),
        (0, 1, "not in memory that CUDA has allocated"),
        (0x1000, 1, "not in memory that CUDA has allocated"),
        (u64::MAX, 1, "1 bytes at 0xffffffffffffffff would end beyond the address space"),
        (address, usize::MAX, "would end beyond the address space"),
    ];
    for (address, bytes, expected) in table {
        let owner = Arc::new(());
        // SAFETY: the call fails.
        let error =
            unsafe { gpu.memory(address, length(bytes), Arc::clone(&owner)) }.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(Arc::strong_count(&owner), 1);
    }
    Ok(())
}

/// Makes the primary context of the first GPU current, as the CUDA runtime does.
fn make_primary_context_current() {
    let device = result::device::get(0).unwrap();
    // SAFETY: retained until the process ends.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(device).unwrap()) }.unwrap();
}

#[test]
fn managed_memory_is_refused() -> Result<(), GpuError> {
    let gpu = gpu!();
    make_primary_context_current();
    let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
    // SAFETY: freed below.
    let address = unsafe { result::malloc_managed(MIB, flags) }.unwrap();
    // SAFETY: the call fails.
    let error = unsafe { gpu.memory(address, length(MIB), ()) }.unwrap_err().to_string();
    assert!(error.contains("is managed memory (cudaMallocManaged)"), "{error}");
    // SAFETY: allocated above, and not used any more.
    unsafe { result::free_sync(address) }.unwrap();
    Ok(())
}

#[test]
fn memory_of_a_pool_is_copied_but_not_exported() -> Result<(), GpuError> {
    let gpu = gpu!();
    make_primary_context_current();
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    // SAFETY: freed below; the stream is alive.
    let address = unsafe { result::malloc_async(stream, MIB) }.unwrap();
    // SAFETY: as above.
    unsafe { result::stream::synchronize(stream) }.unwrap();
    // SAFETY: freed only after `memory` is dropped.
    let memory = unsafe { gpu.memory(address, length(MIB), ()) }?;
    let written = pattern(3, MIB);
    memory.write(0, &written)?;
    let mut read = vec![0; MIB];
    memory.read(0, &mut read)?;
    assert!(read == written);
    let error = memory.export().unwrap_err().to_string();
    assert!(error.contains("cudaMallocAsync") || error.contains("does not export memory"), "{error}");
    drop(memory);
    // SAFETY: allocated above, and no longer used.
    unsafe { result::free_async(address, stream) }.unwrap();
    Ok(())
}

#[test]
fn memory_of_another_gpu_is_refused() -> Result<(), GpuError> {
    let gpu = gpu!();
    if Cuda::count()? < 2 {
        skip!("there is but one GPU");
    }
    let memory = Cuda::device(1)?.allocate(length(MIB))?;
    // SAFETY: the call fails.
    let error = unsafe { gpu.memory(memory.address() as u64, length(MIB), ()) }.unwrap_err().to_string();
    assert!(error.contains("is memory of gpu 1: use that one"), "{error}");
    Ok(())
}

#[test]
fn memory_of_another_context_is_refused() -> Result<(), GpuError> {
    let gpu = gpu!();
    let (device, mut context) = (result::device::get(0).unwrap(), ptr::null_mut());
    // SAFETY: `context` outlives the call, and becomes current for this thread.
    unsafe { sys::cuCtxCreate_v2(&raw mut context, 0, device) }.result().unwrap();
    // SAFETY: freed below.
    let address = unsafe { result::malloc_sync(MIB) }.unwrap();
    // SAFETY: the call fails.
    let error = unsafe { gpu.memory(address, length(MIB), ()) }.unwrap_err().to_string();
    // SAFETY: allocated above, and not used.
    unsafe { result::free_sync(address) }.unwrap();
    // SAFETY: created above, and not used again.
    unsafe { sys::cuCtxDestroy_v2(context) }.result().unwrap();
    assert!(error.contains("is memory of another context than the GPU's primary one"), "{error}");
    Ok(())
}

#[test]
fn a_thread_has_its_own_context_again() -> Result<(), GpuError> {
    let gpu = gpu!();
    assert_eq!(result::ctx::get_current().unwrap(), None);
    let memory = gpu.allocate(length(100))?;
    memory.write(0, b"frame")?;
    assert_eq!(result::ctx::get_current().unwrap(), None);
    make_primary_context_current();
    let own = result::ctx::get_current().unwrap();
    memory.read(0, &mut [0; 5])?;
    drop(memory);
    assert_eq!(result::ctx::get_current().unwrap(), own);
    Ok(())
}

#[test]
fn memory_is_used_while_a_graph_is_captured() -> Result<(), GpuError> {
    const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let gpu = gpu!(write);
    make_primary_context_current();
    let memory = gpu.allocate(length(MIB))?;
    let work = || {
        let (allocated, locked) = (gpu.gpu.allocate(length(MIB)), gpu.gpu.host(length(MIB)));
        (allocated.map(drop), locked.map(drop), memory.write(0, b"frame"))
    };
    for (kind, copied) in
        [(result::stream::StreamKind::NonBlocking, true), (result::stream::StreamKind::Default, false)]
    {
        let stream = result::stream::create(kind).unwrap();
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(stream, GLOBAL) }.unwrap();
        let outcomes = [work(), thread::scope(|scope| scope.spawn(work).join().unwrap())];
        // SAFETY: begun above, by this thread.
        let graph = unsafe { result::stream::end_capture(stream) }.unwrap();
        // SAFETY: the graph is alive, and not used again.
        unsafe { result::graph::destroy(graph) }.unwrap();
        // SAFETY: as above.
        unsafe { result::stream::destroy(stream) }.unwrap();
        for (allocated, locked, written) in outcomes {
            allocated?;
            locked?;
            match written {
                Ok(()) => assert!(copied),
                Err(error) => {
                    assert!(
                        !copied && error.to_string().contains("a CUDA graph is being captured"),
                        "{error}"
                    );
                }
            }
        }
        memory.write(0, b"frame")?;
    }
    let mut mode = GLOBAL;
    // SAFETY: `mode` outlives the call.
    let code = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    assert_eq!((code, mode), (sys::CUresult::CUDA_SUCCESS, GLOBAL));
    Ok(())
}

/// Prints the bandwidth, and asserts nothing: `cargo test -p multinet-memory --features cuda
/// --release bandwidth -- --nocapture`.
#[test]
fn bandwidth() -> Result<(), GpuError> {
    let gpu = gpu!();
    let bytes = 256 * MIB;
    let memory: Arc<dyn GpuMemory> = gpu.allocate(length(bytes))?;
    let mut locked = gpu.host(length(bytes))?;
    let mut other = vec![1_u8; bytes];
    // The first copy locks the slots.
    memory.write(0, &other[..1])?;
    memory.read(0, &mut other[..1])?;
    let rate = |what: &str, copy: &mut dyn FnMut() -> Result<(), GpuError>| {
        let start = Instant::now();
        copy()?;
        println!("{what}: {:.1} GB/s", bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
        Ok(())
    };
    rate("write, locked", &mut || memory.write(0, locked.bytes()))?;
    rate("read, locked", &mut || memory.read(0, locked.bytes_mut()))?;
    rate("write, other", &mut || memory.write(0, &other))?;
    rate("read, other", &mut || memory.read(0, &mut other))
}
