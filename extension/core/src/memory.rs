//! Allocations whose size depends on the data of the caller. A failed Rust allocation ends the
//! process, and PostgreSQL then restarts all sessions. The functions of this module return an error
//! instead (53200).
//!
//! The memory for one element of a list is freed before the next element is processed
//! (`pg::Scratch`). Before a backend reads or writes `jsonb`, it requests the largest amount that
//! it can need: if PostgreSQL ran out of memory during many small requests, it would have none left
//! to report the error.

/// An allocation of this number of bytes failed: SQLSTATE 53200.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory")]
pub struct OutOfMemory {
    pub bytes: usize,
}

/// Allocates an empty list with room for the given number of elements.
pub fn reserve<T>(elements: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut list = Vec::new();
    reserve_more(&mut list, elements)?;
    Ok(list)
}

/// Appends an element.
pub fn push<T>(list: &mut Vec<T>, element: T) -> Result<(), OutOfMemory> {
    reserve_more(list, 1)?;
    list.push(element);
    Ok(())
}

/// Fails unless the given number of bytes can be allocated now. Call this function before
/// PostgreSQL code that makes many small allocations: if one of them failed, PostgreSQL would have
/// no memory left to report the error.
pub fn ensure(bytes: usize) -> Result<(), OutOfMemory> {
    reserve::<u8>(bytes).map(drop)
}

fn reserve_more<T>(list: &mut Vec<T>, elements: usize) -> Result<(), OutOfMemory> {
    list.try_reserve(elements).map_err(|_| OutOfMemory {
        bytes: elements.saturating_mul(size_of::<T>()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_allocation_fails() {
        let bytes = isize::MAX as usize;
        assert_eq!(reserve::<u8>(bytes), Err(OutOfMemory { bytes }));
        assert_eq!(
            reserve::<u64>(usize::MAX).map_err(|e| e.bytes),
            Err(usize::MAX)
        );
    }

    #[test]
    fn pushed_elements_are_in_the_list() {
        let mut list = reserve(1).unwrap();
        for n in 0..100 {
            push(&mut list, n).unwrap();
        }
        assert_eq!(list, (0..100).collect::<Vec<_>>());
    }
}
