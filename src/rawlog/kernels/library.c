/* The extension module of kernels: takes Python's arguments apart, calls machine code that numba made, without the GIL.

   `rawlog.kernels.build` writes the file TABLE (the kernels, their arguments, their entries for each processor level) and links the objects.
   Written against the stable ABI of Python 3.11; the few declarations of it that are used here are part of that ABI, so that building needs no
   Python headers. Uses nothing of the C library but memcpy, memset and strlen, which compilers call by themselves. */

#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

typedef struct _object PyObject;
typedef ptrdiff_t Py_ssize_t;
typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef PyObject *(*FastCall)(PyObject *, PyObject *const *, Py_ssize_t);
typedef struct {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
typedef struct {
    Py_ssize_t ob_refcnt;
    void *ob_type;
    PyObject *(*m_init)(void);
    Py_ssize_t m_index;
    PyObject *m_copy;
    const char *m_name;
    const char *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    void *m_slots, *m_traverse, *m_clear, *m_free;
} PyModuleDef;
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

extern PyObject *PyModule_Create2(PyModuleDef *, int);
extern int PyModule_AddStringConstant(PyObject *, const char *, const char *);
extern int PyModule_AddObjectRef(PyObject *, const char *, PyObject *);
extern PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);
extern PyObject *PyDict_New(void);
extern int PyDict_SetItemString(PyObject *, const char *, PyObject *);
extern PyObject *PyUnicode_FromString(const char *);
extern PyObject *PyLong_FromLongLong(long long);
extern long long PyLong_AsLongLong(PyObject *);
extern PyObject *PyNumber_Index(PyObject *);
extern PyObject *PyBool_FromLong(long);
extern PyObject *PyTuple_New(Py_ssize_t);
extern Py_ssize_t PyTuple_Size(PyObject *);
extern PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
extern int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
extern int PyObject_IsTrue(PyObject *);
extern PyObject *PyObject_Type(PyObject *);
extern PyObject *PyObject_GetAttrString(PyObject *, const char *);
extern PyObject *PyImport_ImportModule(const char *);
extern int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
extern void PyBuffer_Release(Py_buffer *);
extern PyObject *PyErr_Format(PyObject *, const char *, ...);
extern PyObject *PyErr_Occurred(void);
extern void PyErr_Clear(void);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
extern void Py_IncRef(PyObject *);
extern void Py_DecRef(PyObject *);
extern PyObject *PyExc_TypeError, *PyExc_ValueError, *PyExc_RuntimeError;
extern PyObject _Py_TrueStruct, _Py_FalseStruct, _Py_NoneStruct;
#define METH_FASTCALL 0x0080
#define METH_O 0x0008
#define METH_NOARGS 0x0004
#define BUFFER_FLAGS (0x0004 | 0x0008 | 0x0010) /* format, shape, strides; writable or not */

/* What a kernel takes. code: 'i' a number, 'b' a truth value, 'I', 'U', 'B' an array of signed, unsigned or truth values. */
typedef struct {
    char code;
    unsigned char size, dimensions, contiguous, written, count; /* count: arrays of a tuple, 0 if it is not one */
    const char *name, *wanted;
} Argument;
typedef int32_t (*Entry)(const int64_t *words, int64_t *results);
typedef struct {
    const Argument *arguments;
    const Entry *levels;
    const char *results; /* "" None, "i" one number, "(ib" a tuple of a number and a truth value */
} Signature;
typedef struct {
    const char *module, *name;
    int arguments, signatures;
    const Signature *signature;
} Kernel;
typedef struct {
    Py_buffer *view;
    int64_t *word;
} Call;

static PyObject *call(const Kernel *kernel, PyObject *const *given, Py_ssize_t count);
#include TABLE /* KERNELS, CALLS, LEVELS, DIGEST, MOST_VIEWS, MOST_WORDS, MOST_RESULTS */

static int level;

/* NumPy's truth value is neither a number nor a bool of Python's. */
static int is_numpy_bool(PyObject *object) {
    static PyObject *wanted;
    if (!wanted) {
        PyObject *numpy = PyImport_ImportModule("numpy");
        wanted = numpy ? PyObject_GetAttrString(numpy, "bool_") : NULL;
        PyErr_Clear();
    }
    PyObject *type = PyObject_Type(object);
    Py_DecRef(type);
    return wanted && type == wanted;
}

static int has_kind(const Argument *argument, const Py_buffer *view) {
    const char *format = view->format ? view->format : "B";
    if (*format == '@')
        format++;
    if (!*format || format[1] || view->itemsize != argument->size)
        return 0;
    const char *kinds = argument->code == 'I' ? "bhilq" : argument->code == 'U' ? "BHILQ" : "?";
    for (; *kinds; kinds++)
        if (*kinds == *format)
            return 1;
    return 0;
}

/* 1: the array is as declared, its view is kept and its words are written. 0: it is not. */
static int take_array(const Argument *argument, PyObject *object, Call *made) {
    Py_buffer *view = made->view;
    if (PyObject_GetBuffer(object, view, BUFFER_FLAGS) < 0) {
        PyErr_Clear();
        return 0;
    }
    int n = argument->dimensions, empty = 0, good = view->ndim == n && has_kind(argument, view);
    good = good && !(argument->written && view->readonly);
    for (int i = 0; good && i < n; i++)
        empty = empty || view->shape[i] == 0;
    Py_ssize_t dense = argument->size;
    made->word[0] = (int64_t)(intptr_t)view->buf;
    for (int i = n - 1; good && i >= 0; i--) {
        int free = empty || view->shape[i] == 1; /* the stride is never used */
        if (argument->contiguous)
            good = free || view->strides[i] == dense;
        else
            good = free || view->strides[i] % argument->size == 0;
        made->word[1 + i] = view->shape[i];
        made->word[1 + n + i] = argument->contiguous ? dense : view->strides[i];
        dense *= view->shape[i];
    }
    good = good && (empty || (uintptr_t)view->buf % argument->size == 0);
    if (!good) {
        PyBuffer_Release(view);
        return 0;
    }
    made->view++;
    made->word += 1 + 2 * n;
    return 1;
}

/* 1: taken. 0: not as declared. -1: an exception is set. */
static int take(const Argument *argument, PyObject *object, Call *made) {
    if (argument->count) {
        Py_ssize_t count = PyTuple_Size(object);
        if (count != argument->count) {
            PyErr_Clear();
            return 0;
        }
        for (Py_ssize_t i = 0; i < count; i++)
            if (!take_array(argument, PyTuple_GetItem(object, i), made))
                return 0;
        return 1;
    }
    if (argument->code == 'b') {
        if (object == &_Py_TrueStruct || object == &_Py_FalseStruct) {
            *made->word++ = object == &_Py_TrueStruct;
            return 1;
        }
        if (!is_numpy_bool(object))
            return 0;
        *made->word++ = PyObject_IsTrue(object) == 1;
        return 1;
    }
    if (argument->code == 'i') {
        PyObject *number = PyNumber_Index(object);
        if (!number) {
            PyErr_Clear();
            return 0;
        }
        long long value = PyLong_AsLongLong(number);
        Py_DecRef(number);
        if (value == -1 && PyErr_Occurred())
            return -1; /* OverflowError */
        *made->word++ = value;
        return 1;
    }
    return take_array(argument, object, made);
}

static PyObject *result_of(char code, int64_t value) {
    return code == 'b' ? PyBool_FromLong(value != 0) : PyLong_FromLongLong(value);
}

static PyObject *results_of(const char *codes, const int64_t *results) {
    if (!*codes) {
        Py_IncRef(&_Py_NoneStruct);
        return &_Py_NoneStruct;
    }
    if (*codes != '(')
        return result_of(*codes, results[0]);
    Py_ssize_t count = 0;
    while (codes[1 + count])
        count++;
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *one = result_of(codes[1 + i], results[i]);
        if (!one || PyTuple_SetItem(tuple, i, one) < 0) {
            Py_DecRef(tuple);
            return NULL;
        }
    }
    return tuple;
}

static PyObject *refuse(const Kernel *kernel, const Argument *argument, PyObject *object) {
    Py_buffer view;
    PyObject *type = PyObject_Type(object);
    if (!argument->dimensions || argument->count || PyObject_GetBuffer(object, &view, BUFFER_FLAGS) < 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s: %s must be %s, not %R", kernel->name, argument->name, argument->wanted, type);
    } else {
        PyErr_Format(PyExc_TypeError,
                     "%s: %s must be %s, not %R with items of format '%s', %d dimension(s), stride %zd of %zd bytes, %s, address %p",
                     kernel->name, argument->name, argument->wanted, type, view.format ? view.format : "B", view.ndim,
                     view.ndim ? view.strides[view.ndim - 1] : (Py_ssize_t)0, view.itemsize,
                     view.readonly ? "read-only" : "writable", view.buf);
        PyBuffer_Release(&view);
    }
    Py_DecRef(type);
    return NULL;
}

static PyObject *call(const Kernel *kernel, PyObject *const *given, Py_ssize_t count) {
    Py_buffer views[MOST_VIEWS];
    int64_t words[MOST_WORDS], results[MOST_RESULTS];
    if (count != kernel->arguments)
        return PyErr_Format(PyExc_TypeError, "%s takes %d arguments, not %zd", kernel->name, kernel->arguments, count);
    for (int s = 0; s < kernel->signatures; s++) {
        const Signature *signature = kernel->signature + s;
        Call made = {views, words};
        int i = 0, taken = 1;
        PyObject *answer = NULL;
        for (; i < count && (taken = take(signature->arguments + i, given[i], &made)) == 1; i++)
            ;
        if (taken == 1) {
            void *thread = PyEval_SaveThread();
            int32_t status = signature->levels[level](words, results);
            PyEval_RestoreThread(thread);
            if (status)
                PyErr_Format(PyExc_RuntimeError, "%s raised an exception (status %d)", kernel->name, (int)status);
            else
                answer = results_of(signature->results, results);
        }
        while (made.view > views)
            PyBuffer_Release(--made.view);
        if (taken == 0 && s + 1 < kernel->signatures)
            continue; /* the next one may take it */
        return taken == 0 ? refuse(kernel, signature->arguments + i, given[i]) : answer;
    }
    return NULL;
}

static int best_level(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d, need = 1u << 0 | 1u << 1 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23;
    /* sse3, pclmul (apart from the level v2), ssse3, cmpxchg16b, sse4.1, sse4.2, popcnt; lahf */
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need)
        return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & 1))
        return 0;
    return 1;
#else
    return 0;
#endif
}

static PyObject *best(PyObject *module, PyObject *none) {
    return PyLong_FromLongLong(best_level());
}

/* bind(level) -> {"module.name": kernel} */
static PyObject *bind(PyObject *module, PyObject *number) {
    long long wanted = PyLong_AsLongLong(number);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    if (wanted < 0 || wanted > best_level())
        return PyErr_Format(PyExc_ValueError, "this processor does not have level %lld", wanted);
    level = (int)wanted;
    PyObject *found = PyDict_New();
    for (int i = 0; found && KERNELS[i].name; i++) {
        PyObject *name = PyUnicode_FromString(KERNELS[i].module);
        PyObject *made = name ? PyCFunction_NewEx(&CALLS[i], NULL, name) : NULL;
        if (name)
            Py_DecRef(name);
        if (!made || PyDict_SetItemString(found, KEYS[i], made) < 0) {
            Py_DecRef(found);
            found = NULL;
        }
        if (made)
            Py_DecRef(made);
    }
    return found;
}

static PyMethodDef METHODS[] = {
    {"best", best, METH_NOARGS, "The number of the best level that this processor has."},
    {"bind", bind, METH_O, "All kernels by name, at a level."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef MODULE = {1, NULL, NULL, 0, NULL, "library", "Kernels compiled ahead of time.", -1, METHODS, NULL, NULL, NULL, NULL};

__attribute__((visibility("default"))) PyObject *PyInit_library(void) {
    PyObject *module = PyModule_Create2(&MODULE, 3);
    if (!module || PyModule_AddStringConstant(module, "DIGEST", DIGEST) < 0)
        return NULL;
    Py_ssize_t count = sizeof LEVELS / sizeof *LEVELS;
    PyObject *names = PyTuple_New(count);
    for (Py_ssize_t i = 0; names && i < count; i++)
        PyTuple_SetItem(names, i, PyUnicode_FromString(LEVELS[i]));
    if (!names || PyModule_AddObjectRef(module, "LEVELS", names) < 0)
        return NULL;
    Py_DecRef(names);
    return module;
}
