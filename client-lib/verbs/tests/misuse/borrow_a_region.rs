//! The bytes of a memory region are copied in under a lock. They are never borrowed.

use multinet_verbs::MemoryRegion;

fn borrow(region: &MemoryRegion) -> &[u8] {
    region
}

fn main() {}
