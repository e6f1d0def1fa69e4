/* Looks whether places hold the very objects that a graph rests on, as Graph._unchanged() does in Python.
 *
 * It calls Python's stable interface alone, declared here, so that one library serves every version. */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct object Object;
typedef struct {
    const char *name;
    Object *(*call)(Object *, Object *);
    int flags;
    const char *text;
} Method;
typedef struct { /* addresses, as graphed.py writes them */
    Object *holder, *key, *value;
} Place;

enum { NO_ARGUMENTS = 4 }; /* METH_NOARGS */
enum { OF_DICTIONARY, OF_LIST, ATTRIBUTE, CALL, GROUPS };

extern Object *PyCFunction_NewEx(Method *, Object *, Object *), *PyBool_FromLong(long), *PyExc_Exception;
extern Object *PyTuple_GetItem(Object *, ptrdiff_t), *PyDict_GetItemWithError(Object *, Object *);
extern Object *PyObject_GetItem(Object *, Object *), *PyObject_GetAttr(Object *, Object *);
extern Object *PyObject_CallObject(Object *, Object *), *PyErr_Occurred(void);
extern char *PyBytes_AsString(Object *);
extern void Py_DecRef(Object *), PyErr_Clear(void);
extern int PyErr_ExceptionMatches(Object *);

static int differs(int group, const Place *place)
{
    if (group == OF_DICTIONARY)
        return PyDict_GetItemWithError(place->holder, place->key) != place->value;
    Object *found = group == OF_LIST     ? PyObject_GetItem(place->holder, place->key)
                    : group == ATTRIBUTE ? PyObject_GetAttr(place->holder, place->key)
                                         : PyObject_CallObject(place->holder, NULL);
    if (found != NULL)
        Py_DecRef(found);
    return found != place->value;
}

/* True if all are the same. ``self`` is a tuple: how many places of each group, and these; then what keeps them alive. */
static Object *unchanged(Object *self, Object *nothing)
{
    (void)nothing;
    const int64_t *counts = (const int64_t *)PyBytes_AsString(PyTuple_GetItem(self, 0));
    const Place *place = (const Place *)(counts + GROUPS);
    for (int group = 0; group < GROUPS; group++)
        for (int64_t left = counts[group]; left > 0; left--, place++)
            if (differs(group, place)) {
                if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
                    return NULL; /* such as ctrl-c */
                PyErr_Clear();
                return PyBool_FromLong(0);
            }
    return PyBool_FromLong(1);
}

static Method method = {"unchanged", unchanged, NO_ARGUMENTS, NULL};

/* A function of Python that looks at these places. */
EXPORT Object *looking(Object *places) { return PyCFunction_NewEx(&method, places, NULL); }
