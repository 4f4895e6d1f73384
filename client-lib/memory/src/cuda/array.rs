//! Arrays in a GPU, in the form in which other libraries describe them.

use crate::error::GpuError;

/// The description of an array, as in `__cuda_array_interface__` (version 3, by Numba) and DLPack.
///
/// The values are not trusted: they may be negative, zero or too large.
///
/// ```
/// use multinet_memory::CudaArray;
///
/// let (shape, address) = (vec![2, 3, 4], 0x7f00_0000_0000);
/// let image = CudaArray { shape, strides: None, item_size: 4, address };
/// assert_eq!(image.range().unwrap(), (0x7f00_0000_0000, 96));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaArray {
    /// The number of items in each dimension (`shape`). An empty shape is a single item.
    pub shape: Vec<i64>,
    /// The distance from one item to the next in each dimension, in bytes (`strides`). `None` means
    /// contiguous, with the last dimension innermost. DLPack counts items: multiply by the item
    /// size.
    pub strides: Option<Vec<i64>>,
    /// The size of an item in bytes: the number in `typestr`, or DLPack's `bits * lanes / 8`.
    pub item_size: usize,
    /// The address of the first item: the first element of `data`, or DLPack's `data` plus
    /// `byte_offset`.
    pub address: u64,
}

impl CudaArray {
    /// Returns the address and the length in bytes, for [`Cuda::memory`](crate::Cuda::memory). The
    /// length is 0 if a dimension has no items.
    ///
    /// ```
    /// use multinet_memory::CudaArray;
    ///
    /// let (shape, strides) = (vec![2, 3], Some(vec![4, 8]));
    /// let columns_first = CudaArray { shape, strides, item_size: 4, address: 0x7f00_0000_0000 };
    /// // A frame is one range of bytes, in which the rows would have to be contiguous.
    /// assert!(columns_first.range().is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`GpuError`], with the dimension in which the items are not contiguous in the order of their
    /// indices; or if no such array can exist.
    pub fn range(&self) -> Result<(u64, usize), GpuError> {
        if self.item_size == 0 {
            return Err(GpuError::new("the items of an array have a size of 0"));
        }
        let shape = self.counts()?;
        if let Some(strides) = &self.strides
            && strides.len() != shape.len()
        {
            return Err(GpuError::new(format!(
                "an array of {} dimensions has {} strides",
                shape.len(),
                strides.len()
            )));
        }
        if shape.contains(&0) {
            return Ok((self.address, 0));
        }
        let too_large = || GpuError::new(format!("an array of {:?} items is too large", self.shape));
        // The bytes of one item of the dimension at hand, from the last dimension to the first.
        let mut taken = self.item_size;
        for (dimension, count) in shape.iter().enumerate().rev() {
            let stride = self.strides.as_ref().and_then(|strides| strides.get(dimension));
            // The stride of a dimension with a single item is not used.
            if let Some(stride) = stride.filter(|_| *count > 1)
                && usize::try_from(*stride) != Ok(taken)
            {
                return Err(GpuError::new(format!(
                    "an array is not contiguous in dimension {dimension}: its stride is {stride} bytes, and would be {taken}; copy it first \
                     (contiguous() of PyTorch, ascontiguousarray() of CuPy)"
                )));
            }
            taken = taken.checked_mul(*count).ok_or_else(too_large)?;
        }
        self.address.checked_add(taken as u64).ok_or_else(too_large)?;
        Ok((self.address, taken))
    }

    fn counts(&self) -> Result<Vec<usize>, GpuError> {
        let count = |(dimension, count): (usize, &i64)| {
            usize::try_from(*count)
                .map_err(|_| GpuError::new(format!("an array has {count} items in dimension {dimension}")))
        };
        self.shape.iter().enumerate().map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn array(shape: &[i64], strides: Option<&[i64]>, item_size: usize) -> CudaArray {
        CudaArray { shape: shape.to_vec(), strides: strides.map(<[i64]>::to_vec), item_size, address: 0x1000 }
    }

    #[test]
    fn contiguous_arrays_are_one_range() {
        /// Shape, strides, item size; the expected length.
        type Case = (&'static [i64], Option<&'static [i64]>, usize, usize);
        let table: [Case; 9] = [
            (&[], None, 8, 8),
            (&[], Some(&[]), 8, 8),
            (&[5], None, 1, 5),
            (&[5], Some(&[2]), 2, 10),
            (&[2, 3, 4], Some(&[48, 16, 4]), 4, 96),
            // The stride of a dimension with a single item is ignored.
            (&[2, 1, 4], Some(&[16, -7, 4]), 4, 32),
            (&[1, 3], Some(&[i64::MIN, 4]), 4, 12),
            (&[2, 0, 4], None, 4, 0),
            (&[2, 0, 4], Some(&[9, 9, 9]), 4, 0),
        ];
        for (shape, strides, item_size, length) in table {
            assert_eq!(
                array(shape, strides, item_size).range(),
                Ok((0x1000, length)),
                "{shape:?} {strides:?}"
            );
        }
    }

    #[test]
    fn an_array_that_is_not_contiguous_is_refused_with_the_dimension() {
        type Case = (&'static [i64], Option<&'static [i64]>, usize, &'static str);
        let table: [Case; 13] = [
            // Every other item, columns before rows, backwards, and the same item again.
            (&[4], Some(&[8]), 4, "dimension 0: its stride is 8 bytes, and would be 4"),
            (&[2, 3], Some(&[4, 8]), 4, "dimension 1: its stride is 8"),
            (&[4], Some(&[-4]), 4, "dimension 0: its stride is -4"),
            (&[4, 4], Some(&[0, 4]), 4, "dimension 0: its stride is 0 bytes, and would be 16"),
            (&[2, 3, 4], Some(&[64, 16, 4]), 4, "dimension 0: its stride is 64 bytes, and would be 48"),
            (&[2, 3, 4], Some(&[96, 32, 4]), 4, "dimension 1: its stride is 32 bytes, and would be 16"),
            (&[4], Some(&[4, 4]), 4, "1 dimensions has 2 strides"),
            (&[4, -1], None, 4, "-1 items in dimension 1"),
            (&[i64::MIN], None, 4, "items in dimension 0"),
            (&[4], None, 0, "a size of 0"),
            (&[i64::MAX, 2], None, 4, "too large"),
            (&[1 << 32, 1 << 32], None, 1, "too large"),
            (&[i64::MAX], None, usize::MAX, "too large"),
        ];
        for (shape, strides, item_size, expected) in table {
            let error = array(shape, strides, item_size).range().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let at_the_end = CudaArray { address: u64::MAX - 3, ..array(&[4], None, 1) };
        assert!(at_the_end.range().unwrap_err().to_string().contains("too large"));
    }

    /// Returns the offset of each item, by the definition of strides.
    fn items(array: &CudaArray, strides: &[i64]) -> Vec<i64> {
        let mut offsets = vec![0];
        for (count, stride) in array.shape.iter().zip(strides) {
            offsets =
                offsets.iter().flat_map(|it| (0..*count).map(move |index| it + index * stride)).collect();
        }
        offsets
    }

    proptest! {
        #[test]
        fn an_array_is_accepted_if_its_items_are_contiguous(
            dimensions in prop::collection::vec((0_i64..4, -8_i64..32), 0..4),
            item_size in 1_usize..5,
        ) {
            let (shape, strides): (Vec<i64>, Vec<i64>) = dimensions.into_iter().unzip();
            let array = array(&shape, Some(&strides), item_size);
            let items = items(&array, &strides);
            let size = i64::try_from(item_size).unwrap();
            let contiguous = items.iter().enumerate().all(|(index, at)| *at == i64::try_from(index).unwrap() * size);
            prop_assert_eq!(array.range().is_ok(), contiguous);
            if contiguous {
                prop_assert_eq!(array.range(), Ok((0x1000, items.len() * item_size)));
            }
        }

        #[test]
        fn no_description_causes_a_panic(
            shape in prop::collection::vec(any::<i64>(), 0..5),
            strides in prop::option::of(prop::collection::vec(any::<i64>(), 0..5)),
            item_size in any::<usize>(),
            address in any::<u64>(),
        ) {
            if let Ok((start, length)) = (CudaArray { shape, strides, item_size, address }).range() {
                prop_assert_eq!(start, address);
                prop_assert!(length == 0 || start.checked_add(length as u64).is_some());
            }
        }
    }
}
