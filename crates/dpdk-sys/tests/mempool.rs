//! The inlined mempool functions against the library's own count, with and without a cache. One test: one EAL per process.
#![allow(unsafe_code)] // Calls FFI.

use std::collections::HashSet;
use std::ffi::{CString, c_void};
use std::ptr;

use dpdk_sys as sys;
use sys::{mbuf, mempool, thread};

const SIZE: u32 = 2047;
const CACHE: u32 = 256;

struct Pool(*mut sys::rte_mempool);

impl Pool {
    /// The library's count, which our own must agree with.
    fn available(&self) -> u32 {
        // SAFETY: the pool lives and nobody else uses it.
        let (theirs, ours) = unsafe { (sys::rte_mempool_avail_count(self.0), mempool::available(self.0)) };
        assert_eq!(theirs, ours);
        ours
    }

    fn get(&self) -> *mut c_void {
        // SAFETY: the pool lives.
        unsafe { mempool::get(self.0) }
    }

    fn get_bulk(&self, count: u32) -> Option<Vec<*mut c_void>> {
        let mut objects = vec![ptr::null_mut(); count as usize];
        // SAFETY: the pool lives; there is room for `count`.
        unsafe { mempool::get_bulk(self.0, objects.as_mut_ptr(), count) }.then_some(objects)
    }

    fn put(&self, object: *mut c_void) {
        // SAFETY: the object came from this pool and is not used again.
        unsafe { mempool::put(self.0, object) }
    }

    fn put_all(&self, objects: &[*mut c_void]) {
        objects.iter().for_each(|&object| self.put(object));
    }
}

fn start() -> Pool {
    let arguments = [
        "test",
        "--no-huge",
        "--no-shconf",
        "--no-pci",
        "--no-telemetry",
        "--lcores=0@0",
        "-m",
        "64",
        "--log-level=4",
    ];
    let arguments: Vec<_> = arguments
        .iter()
        .map(|text| CString::new(*text).expect("no NUL"))
        .collect();
    let prefix = CString::new(format!("--file-prefix=dpdk-sys-{}", std::process::id())).expect("no NUL");
    let mut pointers: Vec<_> = arguments
        .iter()
        .chain([&prefix])
        .map(|text| text.as_ptr().cast_mut())
        .collect();
    let count = pointers.len() as i32;
    pointers.push(ptr::null_mut());
    // A thread of its own, so that this one is not an lcore.
    std::thread::scope(|scope| {
        let addresses: Vec<usize> = pointers.iter().map(|pointer| *pointer as usize).collect();
        let started = scope.spawn(move || {
            let mut pointers: Vec<_> = addresses.iter().map(|address| *address as *mut _).collect();
            // SAFETY: `count` NUL-terminated strings and a null, alive for as long as the process tests.
            let result = unsafe { sys::rte_eal_init(count, pointers.as_mut_ptr()) };
            assert!(result >= 0, "{}", thread::error_text(thread::errno()));
        });
        started.join().expect("the EAL starts without privileges");
    });
    // The EAL keeps pointers into its arguments.
    std::mem::forget((arguments, prefix));
    // SAFETY: the EAL runs; the name is NUL-terminated.
    let pool = unsafe { sys::rte_pktmbuf_pool_create(c"test".as_ptr(), SIZE, CACHE, 0, 2176, -1) };
    assert!(!pool.is_null());
    // SAFETY: the string is static; the directory is empty without telemetry.
    let directory = unsafe { std::ffi::CStr::from_ptr(sys::rte_eal_get_runtime_dir()) };
    let _ = std::fs::remove_dir(directory.to_str().expect("a path"));
    Pool(pool)
}

/// Everything out and back, one by one and in bulk; the counts are right at each step.
fn out_and_back(pool: &Pool) {
    assert_eq!(pool.available(), SIZE);
    let all: Vec<_> = std::iter::repeat_with(|| pool.get())
        .take_while(|object| !object.is_null())
        .collect();
    assert_eq!((all.len() as u32, pool.available()), (SIZE, 0));
    assert_eq!(
        all.iter().collect::<HashSet<_>>().len(),
        all.len(),
        "each object is given out once"
    );
    assert!(pool.get_bulk(1).is_none());
    pool.put_all(&all[..1000]);
    assert_eq!(pool.available(), 1000);
    assert!(pool.get_bulk(1001).is_none());
    assert_eq!(pool.available(), 1000, "none is taken if not all are there");
    pool.put_all(&all[1000..]);
    assert_eq!(pool.available(), SIZE);
    for count in [1, 2, 31, 32, CACHE - 1, CACHE, CACHE + 1, 700, SIZE] {
        let objects = pool.get_bulk(count).expect("enough are there");
        assert_eq!(objects.iter().collect::<HashSet<_>>().len(), count as usize);
        assert_eq!(pool.available(), SIZE - count);
        let mixed = pool.get();
        assert_eq!(mixed.is_null(), count == SIZE);
        if !mixed.is_null() {
            assert!(!objects.contains(&mixed));
            pool.put(mixed);
        }
        pool.put_all(&objects);
        assert_eq!(pool.available(), SIZE);
    }
}

#[test]
fn objects_go_out_once_and_come_back() {
    let pool = start();
    assert_eq!(thread::lcore_id(), thread::LCORE_ID_ANY);
    out_and_back(&pool);

    let id = thread::register().expect("an lcore id is left");
    assert!(id != 0 && id < sys::RTE_MAX_LCORE, "lcore 0 is the EAL's own");
    assert_eq!(thread::lcore_id(), id);
    out_and_back(&pool);

    // A partial refill: the cache holds some, the ring fewer than a refill takes.
    let most = pool.get_bulk(SIZE - 10).expect("enough are there");
    let rest = pool.get_bulk(10).expect("the last ones");
    assert_eq!(pool.available(), 0);
    pool.put_all(&rest);
    assert!(pool.get_bulk(11).is_none());
    let rest = pool.get_bulk(10).expect("the last ones");
    pool.put_all(&most);
    pool.put_all(&rest);

    // What the last user left in an mbuf does not show in the next.
    // SAFETY: the pool lives and the mbufs are ours until they are freed.
    unsafe {
        for _ in 0..2 {
            let packet = mbuf::alloc(pool.0);
            assert_eq!(((*packet).data_off, (*packet).data_len, (*packet).pkt_len), (128, 0, 0));
            assert_eq!(
                ((*packet).nb_segs, (*packet).refcnt, (*packet).ol_flags, (*packet).port),
                (1, 1, 0, u16::MAX)
            );
            assert!((*packet).next.is_null() && mbuf::data(packet) == (*packet).buf_addr.cast::<u8>().add(128));
            ((*packet).data_off, (*packet).data_len, (*packet).ol_flags) = (7, 9, 1 << 7);
            mbuf::free(packet);
        }
        // A chain goes back whole, through the library.
        let (head, tail) = (mbuf::alloc(pool.0), mbuf::alloc(pool.0));
        ((*head).nb_segs, (*head).next) = (2, tail);
        assert_eq!(pool.available(), SIZE - 2);
        mbuf::free(head);
        // A second reference keeps it.
        let shared = mbuf::alloc(pool.0);
        (*shared).refcnt = 2;
        mbuf::free(shared);
        assert_eq!(((*shared).refcnt, pool.available()), (1, SIZE - 1));
        mbuf::free(shared);
        assert_eq!(pool.available(), SIZE);
    }
    thread::unregister();
    assert_eq!(thread::lcore_id(), thread::LCORE_ID_ANY);
    let all = pool
        .get_bulk(SIZE)
        .expect("nothing is left in the cache of a thread that is no lcore");
    pool.put_all(&all);
}
