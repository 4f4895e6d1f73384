//! The checks of a device pointer, and the part of its allocation that is exported.
#![allow(unsafe_code, reason = "talks to CUDA")]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUmemorytype, CUpointer_attribute};

use super::context::Current;
use crate::error::GpuError;

/// Returns the reason why an address is not memory of this GPU, or `None` if it is.
fn reason_against(address: u64, kind: u32, managed: bool, found: c_int, ordinal: u32) -> Option<String> {
    const HOST: u32 = CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    const DEVICE: u32 = CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    if managed {
        return Some(format!(
            "{address:#x} is managed memory (cudaMallocManaged), which moves: copy it to memory of cudaMalloc's first"
        ));
    }
    match kind {
        DEVICE if u32::try_from(found) == Ok(ordinal) => None,
        DEVICE => Some(format!("{address:#x} is memory of gpu {found}: use that one")),
        HOST => Some(format!("{address:#x} is memory of the machine's, not of a GPU's: send it as such")),
        _ => Some(format!("{address:#x} is no memory of a GPU's")),
    }
}

/// Verifies that a whole range is memory of this GPU, and of no other context.
pub(super) fn verify(current: &Current<'_>, range: &Range<u64>, ordinal: u32) -> Result<(), GpuError> {
    use CUpointer_attribute as Attribute;
    let (mut kind, mut managed, mut found) = (0_u32, 0_u32, -1 as c_int);
    // SAFETY: the size of the attribute.
    unsafe { query(current, &mut kind, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range.start) }?;
    // SAFETY: at least the size of the attribute, which is a boolean; zero before.
    unsafe { query(current, &mut managed, Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, range.start) }?;
    // SAFETY: the size of the attribute.
    unsafe { query(current, &mut found, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range.start) }?;
    if let Some(reason) = reason_against(range.start, kind, managed != 0, found, ordinal) {
        return Err(current.context.error(reason));
    }
    let mut owner: CUcontext = ptr::null_mut();
    // SAFETY: the size of the attribute.
    let asked = unsafe { query(current, &mut owner, Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, range.start) };
    // Copies here do not wait for streams of other contexts. Memory of pools, or mapped by the
    // program (CUDA Driver API, "Virtual Memory Management"), has no context: the query fails, or
    // returns null.
    if asked.is_ok() && !owner.is_null() && !current.context.is_same(owner) {
        return Err(current.context.error(format!(
            "{:#x} is memory of another context than the GPU's primary one (cuCtxCreate, gst_cuda_context_new): use the primary one \
             (cuDevicePrimaryCtxRetain)",
            range.start
        )));
    }
    let reserved = || {
        let (mut start, mut size): (CUdeviceptr, usize) = (0, 0);
        // SAFETY: the size of the attribute.
        unsafe { query(current, &mut start, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, range.start) }?;
        // SAFETY: as above.
        unsafe { query(current, &mut size, Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, range.start) }?;
        Ok(start..start.saturating_add(size as u64))
    };
    match covered(range, |address| allocation(current, address), reserved)? {
        None => Ok(()),
        Some(end) => Err(current.context.error(format!(
            "{} bytes at {:#x} are more than the {} that are allocated there",
            range.end - range.start,
            range.start,
            end - range.start
        ))),
    }
}

/// Returns `None` if a whole range is allocated, or else where its allocated part ends.
///
/// Programs may put a range together from several allocations (CUDA Driver API, "Virtual Memory
/// Management"). The driver returns those in pieces, but knows the reserved addresses as one range.
fn covered(
    range: &Range<u64>,
    mut allocation: impl FnMut(u64) -> Result<Range<u64>, GpuError>,
    reserved: impl FnOnce() -> Result<Range<u64>, GpuError>,
) -> Result<Option<u64>, GpuError> {
    let mut end = allocation(range.start)?.end;
    if range.end <= end {
        return Ok(None);
    }
    let reserved = reserved()?;
    if range.end > reserved.end {
        return Ok(Some(end));
    }
    while end < range.end {
        match allocation(end) {
            Ok(piece) if piece.end > end => end = piece.end,
            _ => return Ok(Some(end)),
        }
    }
    Ok(None)
}

/// Returns the range of the GPU allocation that contains an address.
pub(super) fn allocation(current: &Current<'_>, address: CUdeviceptr) -> Result<Range<u64>, GpuError> {
    let (mut start, mut size): (CUdeviceptr, usize) = (0, 0);
    // SAFETY: both outlive the call; any address may be queried.
    let code =
        unsafe { (current.context.library.cuMemGetAddressRange_v2)(&raw mut start, &raw mut size, address) };
    current.context.check("cuMemGetAddressRange", code)?;
    Ok(start..start.saturating_add(size as u64))
}

/// Returns an error with the reason if RDMA devices cannot access the memory at an address.
pub(super) fn reachable(current: &Current<'_>, address: CUdeviceptr) -> Result<(), GpuError> {
    let mut capable = 0_u32;
    // SAFETY: at least the size of the attribute, which is a boolean; zero before.
    let asked = unsafe {
        query(
            current,
            &mut capable,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
            address,
        )
    };
    // A driver that does not know the attribute reports the reason when the memory is exported.
    if asked.is_ok() && capable == 0 {
        return Err(current.context.error(format!(
            "RDMA devices cannot reach the memory at {address:#x}: it is of cudaMallocAsync or another pool, or of cuMemCreate without \
             gpuDirectRDMACapable; allocate it by cudaMalloc"
        )));
    }
    Ok(())
}

/// Makes calls of the program on this memory synchronous, as far as CUDA supports it (CUDA,
/// "GPUDirect RDMA": "Synchronization Behavior").
pub(super) fn synchronous(current: &Current<'_>, address: CUdeviceptr) -> Result<(), GpuError> {
    let yes = 1_u32;
    // SAFETY: `yes` outlives the call, and has the type of the attribute.
    let code = unsafe {
        (current.context.library.cuPointerSetAttribute)(
            (&raw const yes).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
            address,
        )
    };
    current.context.check("cuPointerSetAttribute", code)
}

/// Queries an attribute of an address.
///
/// # Safety
///
/// The value is at least as large as the attribute, and any bytes are valid for it.
unsafe fn query<T>(
    current: &Current<'_>,
    value: &mut T,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Result<(), GpuError> {
    let value: *mut c_void = (&raw mut *value).cast();
    // SAFETY: the caller's promise; any address may be queried.
    let code = unsafe { (current.context.library.cuPointerGetAttribute)(value, attribute, address) };
    current.context.check("cuPointerGetAttribute", code)
}

/// The part of an allocation that is exported: whole pages, and the offset of the memory in them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exported {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) offset: u64,
}

impl Exported {
    /// Computes the export of memory within its allocation, or within itself if it is one of
    /// several pieces. Returns `None` if the addresses overflow.
    pub(super) fn new(memory: &Range<u64>, allocation: &Range<u64>, page: u64) -> Option<Self> {
        let whole = allocation.start <= memory.start && memory.end <= allocation.end;
        let named = if whole { allocation } else { memory };
        let start = named.start - named.start.checked_rem(page)?;
        let end = named.end.checked_next_multiple_of(page)?;
        Some(Self { start, length: end.checked_sub(start)?, offset: memory.start.checked_sub(start)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_memory_of_this_gpu_is_accepted() {
        let table: [(u32, bool, c_int, Option<&str>); 7] = [
            (2, false, 1, None),
            (2, false, 0, Some("of gpu 0")),
            (2, false, -2, Some("of gpu -2")),
            (2, true, 1, Some("managed")),
            (1, false, 1, Some("of the machine's")),
            (1, true, 1, Some("managed")),
            (3, false, 1, Some("no memory of a GPU's")),
        ];
        for (kind, managed, found, expected) in table {
            let reason = reason_against(0x7f00_0000, kind, managed, found, 1);
            match expected {
                None => assert_eq!(reason, None),
                Some(words) => assert!(reason.as_ref().is_some_and(|it| it.contains(words)), "{reason:?}"),
            }
        }
    }

    #[test]
    fn a_range_may_consist_of_several_pieces_of_a_reservation() {
        // Two pieces of one reservation, a gap, and another allocation right after the reservation.
        let pieces = [0x1000..0x2000, 0x2000..0x3000, 0x4000..0x5000, 0x5000..0x6000];
        let allocation = |address: u64| {
            pieces.iter().find(|piece| piece.contains(&address)).cloned().ok_or_else(|| GpuError::new("none"))
        };
        let table = [
            (0x1000..0x2000, Ok(None)),
            (0x1ff0..0x2000, Ok(None)),
            (0x1800..0x2800, Ok(None)),
            (0x1000..0x3000, Ok(None)),
            (0x1000..0x3001, Ok(Some(0x3000))),
            (0x4000..0x5001, Ok(Some(0x5000))),
            (0x3000..0x3001, Err(GpuError::new("none"))),
        ];
        for (range, expected) in table {
            assert_eq!(covered(&range, allocation, || Ok(0x1000..0x5000)), expected, "{range:x?}");
        }
        // A driver that always returns the same piece.
        assert_eq!(covered(&(0..9), |_| Ok(0..3), || Ok(0..9)), Ok(Some(3)));
    }

    #[test]
    fn whole_pages_are_exported() {
        let exported = |start, length, offset| Some(Exported { start, length, offset });
        let table = [
            (0x20_0000..0x40_0000, 0x20_0000..0x40_0000, exported(0x20_0000, 0x20_0000, 0)),
            (0x20_0123..0x20_0124, 0x20_0000..0x40_0000, exported(0x20_0000, 0x20_0000, 0x123)),
            (0x20_0200..0x20_0400, 0x20_0200..0x20_0400, exported(0x20_0000, 0x1000, 0x200)),
            (0x20_0ff0..0x20_1010, 0x20_0f00..0x20_1100, exported(0x20_0000, 0x2000, 0xff0)),
            // The memory extends beyond one piece.
            (0x3f_0010..0x41_0010, 0x20_0000..0x40_0000, exported(0x3f_0000, 0x2_1000, 0x10)),
            (u64::MAX - 1..u64::MAX, u64::MAX - 1..u64::MAX, None),
        ];
        for (memory, allocation, expected) in table {
            assert_eq!(Exported::new(&memory, &allocation, 0x1000), expected, "{memory:x?}");
        }
        assert_eq!(Exported::new(&(0..1), &(0..1), 0), None);
    }

    proptest! {
        #[test]
        fn an_export_contains_the_memory(
            start in 0_u64..1 << 48,
            before in 0_u64..1 << 24,
            length in 1_u64..1 << 24,
            after in -(1_i64 << 20)..1 << 24,
            page in prop::sample::select(vec![0x1000_u64, 0x1_0000]),
        ) {
            let memory = start + before..start + before + length;
            let allocation = start..memory.end.saturating_add_signed(after).max(memory.start + 1);
            let exported = Exported::new(&memory, &allocation, page).unwrap();
            prop_assert_eq!(exported.start % page, 0);
            prop_assert_eq!(exported.length % page, 0);
            prop_assert_eq!(exported.start + exported.offset, memory.start);
            prop_assert!(exported.offset + length <= exported.length);
        }
    }
}
