//! The messages of failed calls: the driver's name and description of the error, and the remedy.

use cudarc::driver::sys::CUresult;

pub(super) const SUCCESS: u32 = CUresult::CUDA_SUCCESS as u32;
const STUB_LIBRARY: u32 = CUresult::CUDA_ERROR_STUB_LIBRARY as u32;

/// The error message if libcuda cannot be loaded, with the remedy.
pub(super) const NO_LIBRARY: &str = "libcuda.so.1 cannot be loaded: request nvidia.com/gpu in the pod's spec, with NVIDIA_DRIVER_CAPABILITIES=compute,utility in the image; on a machine of one's own, install NVIDIA's driver";

/// Returns the error message if libcuda lacks this function, with the remedy.
pub(super) fn missing_function(function: &str) -> String {
    format!("this libcuda has no {function}: install a driver for CUDA 11 or newer")
}

/// Returns the message of a failed call as one line: the call, the name and description of the
/// error, and a hint if the cause is known.
pub(super) fn message(call: &str, code: u32, name: Option<&str>, words: Option<&str>) -> String {
    // The stub does not know its error's name.
    let name = name.or_else(|| (code == STUB_LIBRARY).then_some("CUDA_ERROR_STUB_LIBRARY"));
    let mut line = match name {
        Some(name) => format!("{call}: {name}"),
        // A driver does not know the errors of newer ones.
        None => format!("{call}: CUDA error {code}"),
    };
    // Some descriptions only repeat the name.
    if let Some(words) = words.filter(|words| Some(*words) != name) {
        line += &format!(" ({words})");
    }
    if let Some(hint) = name.and_then(|name| hint(call, name)) {
        line += &format!(": {hint}");
    }
    // The driver's texts may contain line breaks.
    line.replace(['\n', '\r'], " ")
}

/// Returns the likely cause and the remedy of an error of this call, if they are known, by the name
/// of the error in the CUDA Driver API.
fn hint(call: &str, name: &str) -> Option<&'static str> {
    let error = name.strip_prefix("CUDA_ERROR_")?;
    Some(match (call, error) {
        ("cuMemHostAlloc", "OUT_OF_MEMORY") => {
            "the machine, or this container's limit, has too little memory left to lock"
        }
        (_, "OUT_OF_MEMORY") => "the GPU has too little memory left",
        ("cuPointerGetAttribute" | "cuMemGetAddressRange", "INVALID_VALUE" | "NOT_FOUND") => {
            "the address is not in memory that CUDA has allocated or mapped"
        }
        (_, "NOT_INITIALIZED") => {
            "CUDA does not survive fork: start child processes anew (in Python, multiprocessing's start method is to be \"spawn\")"
        }
        (_, "DEINITIALIZED") => "the program is ending",
        (_, "STUB_LIBRARY") => {
            "the libcuda that is found is the toolkit's stub, not the driver's: request nvidia.com/gpu in the pod's spec, and take the stub's folder \
             (lib64/stubs) from LD_LIBRARY_PATH"
        }
        (_, "DEVICE_UNAVAILABLE") => {
            "another process has the GPU for itself (its compute mode), or MPS holds it"
        }
        (_, "NO_DEVICE") => {
            "this process sees no GPU: request nvidia.com/gpu in the pod's spec, and look at CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES"
        }
        (_, "INVALID_DEVICE") => "the process may see fewer GPUs than that (CUDA_VISIBLE_DEVICES)",
        (_, "ECC_UNCORRECTABLE" | "NVLINK_UNCORRECTABLE") => {
            "the GPU's hardware has failed (dmesg has the Xid): start the process again, on another GPU if it stays so"
        }
        (_, "OPERATING_SYSTEM") => {
            "the kernel refuses: /dev/nvidia* of this container, or what it may lock or open"
        }
        (
            _,
            "ILLEGAL_ADDRESS"
            | "LAUNCH_TIMEOUT"
            | "ASSERT"
            | "HARDWARE_STACK_ERROR"
            | "ILLEGAL_INSTRUCTION"
            | "MISALIGNED_ADDRESS"
            | "INVALID_ADDRESS_SPACE"
            | "INVALID_PC"
            | "LAUNCH_FAILED",
        ) => {
            "a kernel of this program has failed before, or the GPU is lost (dmesg has the Xid): the process has to be started again"
        }
        (_, "CONTEXT_IS_DESTROYED") => {
            "the program has reset the GPU (cudaDeviceReset): let go of all that is of it, and ask for it again"
        }
        (_, "NOT_PERMITTED") => {
            "the driver or the system's administrator does not allow it in this container"
        }
        (_, "NOT_SUPPORTED") => "this GPU, its driver or the kind of memory does not support it",
        (_, "SYSTEM_NOT_READY") => {
            "nvidia-fabricmanager, which GPUs with NVSwitch need, does not run on the node"
        }
        (_, "SYSTEM_DRIVER_MISMATCH") => {
            "libcuda and the kernel's module are of different versions: reload the module or restart the node, and use the libcuda that the \
             container toolkit mounts, not one in the image"
        }
        (_, "COMPAT_NOT_SUPPORTED_ON_DEVICE") => {
            "the libcuda in the image (cuda-compat) is too new for this GPU's driver: remove it from the image, or update the driver"
        }
        (_, error) if error.starts_with("STREAM_CAPTURE_") => {
            "a CUDA graph is being captured: do this before or after"
        }
        ("cuInit", "UNKNOWN") => {
            "the kernel's modules are not all there: nvidia-smi says more; nvidia-uvm is loaded by nvidia-modprobe -u"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_with_the_call_the_error_and_the_remedy() {
        let table = [
            (
                "cuMemAlloc",
                2,
                Some("CUDA_ERROR_OUT_OF_MEMORY"),
                Some("out of memory"),
                "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory): the GPU has too little memory left",
            ),
            (
                "cuMemAlloc",
                1,
                Some("CUDA_ERROR_INVALID_VALUE"),
                Some("invalid argument"),
                "cuMemAlloc: CUDA_ERROR_INVALID_VALUE (invalid argument)",
            ),
            ("cuCtxPushCurrent", 98765, None, None, "cuCtxPushCurrent: CUDA error 98765"),
            (
                "cuInit",
                34,
                None,
                None,
                "cuInit: CUDA_ERROR_STUB_LIBRARY: the libcuda that is found is the toolkit's stub, not the driver's: request nvidia.com/gpu in the \
                 pod's spec, and take the stub's folder (lib64/stubs) from LD_LIBRARY_PATH",
            ),
            ("cuCtxPushCurrent", 98765, Some("NEW"), Some("NEW"), "cuCtxPushCurrent: NEW"),
            (
                "cuCtxPushCurrent",
                98765,
                Some("NEW"),
                Some("of two\nlines"),
                "cuCtxPushCurrent: NEW (of two lines)",
            ),
        ];
        for (call, code, name, words, expected) in table {
            assert_eq!(message(call, code, name, words), expected);
        }
    }

    #[test]
    fn known_causes_have_hints() {
        let table = [
            ("cuInit", CUresult::CUDA_ERROR_NO_DEVICE, "nvidia.com/gpu"),
            ("cuInit", CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "different versions"),
            ("cuInit", CUresult::CUDA_ERROR_STUB_LIBRARY, "stub"),
            ("cuInit", CUresult::CUDA_ERROR_NOT_INITIALIZED, "fork"),
            ("cuInit", CUresult::CUDA_ERROR_SYSTEM_NOT_READY, "fabricmanager"),
            ("cuInit", CUresult::CUDA_ERROR_UNKNOWN, "nvidia-uvm"),
            ("cuMemHostAlloc", CUresult::CUDA_ERROR_OUT_OF_MEMORY, "machine"),
            ("cuPointerGetAttribute", CUresult::CUDA_ERROR_INVALID_VALUE, "not in memory"),
            ("cuMemGetAddressRange", CUresult::CUDA_ERROR_NOT_FOUND, "not in memory"),
            ("cuMemGetHandleForAddressRange", CUresult::CUDA_ERROR_NOT_SUPPORTED, "does not support"),
            ("cuStreamSynchronize", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "started again"),
            ("cuStreamSynchronize", CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, "started again"),
            ("cuStreamSynchronize", CUresult::CUDA_ERROR_LAUNCH_FAILED, "started again"),
            ("cuStreamSynchronize", CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, "Xid"),
            ("cuEventRecord", CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "graph"),
        ];
        for (call, code, expected) in table {
            let hint = hint(call, &format!("{code:?}"));
            assert!(hint.is_some_and(|hint| hint.contains(expected)), "{call}, {code:?}: {hint:?}");
        }
        assert_eq!(hint("cuMemAlloc", "CUDA_ERROR_INVALID_VALUE"), None);
        assert_eq!(hint("cuStreamCreate", "CUDA_ERROR_UNKNOWN"), None);
    }

    #[test]
    fn messages_without_a_driver_are_one_line() {
        for text in [NO_LIBRARY.to_owned(), missing_function("cuMemAlloc_v2")] {
            assert!(!text.contains('\n'), "{text}");
        }
        assert!(missing_function("cuMemAlloc_v2").contains("no cuMemAlloc_v2"));
    }
}
